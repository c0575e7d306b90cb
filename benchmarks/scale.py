"""Measure what 10,000 trials cost a driver's memory, and the readers of their record: ls, best, show, report, load().

The record is written as Tune's callbacks would have it (no training, no Ray): 10,000 trials of 31 reports each, 350,002
lines. Each reader is a new process, imports included: first without a snapshot beside the record, then with one, and
then after 1,000 further reports. Beside them Optuna loads a study of these trials, and its best one, from its journal
and from SQLite. What a driver keeps is measured without Tune's trials (benchmarks/leak.py has these, too). At
last a driver goes on with the sweep, Ray being up. The status is 1 where a reader that finds a snapshot takes more than
1 s or 200 MB, the report more than 8 s or its file 4 MB, where a driver keeps more than 60 bytes for each report, and
where a resumed sweep takes more than 8 s to its next trial.

    python benchmarks/scale.py          # about 3 minutes on 2 cores
    python benchmarks/scale.py --short  # 200 trials of 9 reports: does it still run? Judges nothing.
"""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import headline, median, spread, table
from measure import PEERS, environment, options, said
from reporting import Driver

from tunelight.record import Record
from tunelight.results import SweepResults

LIMIT_S, LIMIT_MB = 1.0, 200.0
REPORT_S, REPORT_MB, REPORT_BYTES, RESUME_S = 8.0, 4.0, 60.0, 8.0
MORE = 1000
"""Reports that come after the last look."""
_LOAD = "import sys; import tunelight as tl; tl.SweepResults.load(sys.argv[1]).best"
_KEPT = (
    "import gc, psutil, sys; from pathlib import Path; from scale import Recorded; "
    "driver = Recorded(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])); now = psutil.Process().memory_info; "
    "gc.collect(); before = now().rss; driver.run(); gc.collect(); print(now().rss - before)"
)
_PEER = (
    "import sys, optuna; optuna.logging.set_verbosity(optuna.logging.ERROR); where = sys.argv[1]; "
    "from optuna.storages import JournalStorage as Storage; from optuna.storages.journal import JournalFileBackend; "
    "storage = where if '://' in where else Storage(JournalFileBackend(where)); "
    "optuna.load_study(study_name='sweep', storage=storage).best_trial"
)
_TIMED = (
    "import json, os, subprocess, sys, time; began = time.perf_counter(); "
    "one = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL); _, status, used = os.wait4(one.pid, 0); "
    "print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, status]))"
)
"""A process of its own, since a child's memory counts from that of the process that starts it."""


class Recorded(Driver):
    """A driver that shows nothing, whose sweep is recorded in a moment."""

    def __init__(self, folder: Path, trials: int, reports: int) -> None:
        super().__init__(folder, trials, reports)
        self.callbacks = {"record": self.callbacks["record"]}


def timed(words: list[str]) -> tuple[float, float, float]:
    """Run a command; return its seconds, those of the processor, and the memory that it had at most, in MB."""
    run = subprocess.run(
        [sys.executable, "-S", "-E", "-c", _TIMED, *words],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    wall, cpu, peak, status = json.loads(run.stdout)
    if status:
        raise RuntimeError(f"{' '.join(words)} failed: {run.stderr}")
    return wall, cpu, peak


def output(words: list[str]) -> str:
    """Run a command of this folder; return what it prints."""
    run = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent, env=environment()
    )
    return run.stdout


def kept(folder: Path, trials: int, reports: int) -> float:
    """Return the bytes that a driver has more at the end of a sweep, which runs in a process of its own."""
    folder.mkdir()
    return float(output([sys.executable, "-c", _KEPT, str(folder), str(trials), str(reports)]))


def peers(folder: Path, scratch: Path) -> dict[str, list[str]]:
    """Write the sweep as Optuna's studies; return how each is read.

    SQLite takes minutes to write so many, so that it gets a hundredth of them a hundred times.
    """
    journal, database = scratch / "journal.log", scratch / "study.db"
    results = SweepResults.load(folder)
    results.to_study(journal)
    every = len(results) // 100
    few = scratch / "few" / folder.name
    few.mkdir(parents=True)
    Recorded(few, every, results.trials[0].reports).run()
    SweepResults.load(few).to_study(f"sqlite:///{database}")
    with sqlite3.connect(database) as base:
        names = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in sorted(names):
            columns = [row[1] for row in base.execute(f"PRAGMA table_info({name})")]
            if "trial_id" in columns:
                moved = ("trial_id", "number")
                own = [f"{one} + n * {every}" if one in moved else one for one in columns]
                own = own if columns[0] in moved else ["NULL", *own[1:]]  # a key of its own
                base.execute(
                    "WITH RECURSIVE times(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM times WHERE n < 99) "
                    f"INSERT INTO {name} SELECT {', '.join(own)} FROM {name}, times"
                )
    read = [sys.executable, "-c", _PEER]
    return {"Optuna, journal": [*read, str(journal)], "Optuna, SQLite": [*read, f"sqlite:///{database}"]}


def grow(folder: Path, trials: int) -> None:
    """Append what a driver would record of some further reports."""
    record = Record.open(folder)
    for number in range(MORE):
        record.append(
            "report", trial=f"{number % trials:05d}", training_iteration=99 + number, epoch=98, timestamp=2e6,
            metrics={"loss": 1.0, "accuracy": 0.5, "lr": 0.1}, decision="CONTINUE", workers=2, seconds=None,
        )  # fmt: skip
    record.close()


def main() -> int:
    """Record a sweep, let each reader read it, print what that cost, and return the exit status."""
    args = options(__doc__, "200 trials of 9 reports, each reader once; nothing is judged", repeats=5)
    trials, reports = (200, 9) if args.short else (10_000, 31)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "runs", "sweep")
        folder.mkdir(parents=True)
        with said(f"recording {trials:,} trials"):
            Recorded(folder, trials, reports).run()
        size, snapshot = (folder / "record.jsonl").stat().st_size, folder / ".snapshot.jsonl"
        command = [sys.executable, "-m", "tunelight"]
        readers = {
            "ls": [*command, "ls", str(folder.parent)],
            "best": [*command, "best", str(folder)],
            "show": [*command, "show", str(folder)],
            "SweepResults.load().best": [sys.executable, "-c", _LOAD, str(folder)],
            "report": [*command, "report", str(folder), "--out", f"{scratch}/report.html"],
        }
        found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for number in range(args.repeats):
            for name, words in readers.items():
                if number == 0:
                    snapshot.unlink(missing_ok=True)
                    found[name, "first"] = [timed(words)]
                    assert snapshot.exists()
                found.setdefault((name, "then"), []).append(timed(words))
        grow(folder, trials)
        for name, words in readers.items():
            found[name, "grown"] = [timed(words) for _ in range(args.repeats)]
        words = [sys.executable, str(PEERS / "resume.py"), str(folder)]
        begun = [float(output([*words, str(trials + number)]).split()[-1]) for number in range(args.repeats)]
        html = Path(scratch, "report.html").stat().st_size
        few, many = (kept(Path(scratch, f"kept-{one}"), trials // 5, one) for one in (3, reports))
        with said("writing studies"):
            others = peers(folder, Path(scratch))
        for name, words in others.items():
            found[name, "then"] = [timed(words) for _ in range(args.repeats)]
    print(f"\nA record of {trials:,} trials with {reports} reports each ({size / 1e6:.0f} MB)\n")
    titles = {"first": "without a snapshot", "then": "", "grown": f"{MORE:,} reports later"}
    middle = {key: [median(column) for column in zip(*runs, strict=True)] for key, runs in found.items()}
    rows = [
        [name, titles[how], f"{wall:.2f} s", f"{cpu:.2f} s", f"{peak:.0f} MB"]
        for (name, how), (wall, cpu, peak) in sorted(middle.items(), key=lambda one: (one[0][1] == "then", one[0][1]))
    ]
    print(table(["reader", "", "wall", "processor", "memory"], rows) + "\n")
    met = []
    of = f"a record of {trials:,} trials"
    for name in readers:
        wall, _, peak = middle[name, "then"]
        times = spread(run[0] for run in found[name, "then"])
        most = (REPORT_S, math.nan) if name == "report" else (LIMIT_S, LIMIT_MB)
        met.append(headline(f"{of}: {name}, time", wall, "s", of=times, most=most[0]))
        met.append(headline(f"{of}: {name}, memory", peak, "MB", most=most[1], digits=0))
        met.append(headline(f"{of}: {name} without a snapshot, processor time", middle[name, "first"][1], "s"))
    times = spread(begun)
    met.append(headline(f"{of}: resumed, until a new one trains", median(begun), "s", of=times, most=RESUME_S))
    met.append(headline(f"{of}: the report's file", html / 1e6, "MB", most=REPORT_MB))
    of_reports = (many - few) / (trials // 5) / (reports - 3)
    met.append(headline("a driver's memory for each report", of_reports, "bytes", most=REPORT_BYTES, digits=0))
    of_trials = few / (trials // 5) - 3 * of_reports
    met.append(headline("a driver's memory for each trial, without Tune's", of_trials / 1e3, "KB"))
    own = middle["SweepResults.load().best", "then"]
    for name in others:
        wall, cpu, peak = middle[name, "then"]
        met.append(headline(f"{of}: SweepResults.load().best / {name}, processor time", own[1] / cpu, "x", digits=3))
    return 0 if args.short or all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
