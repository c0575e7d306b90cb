"""How long a trial takes, against what others need for the same work on the same machine.

The same 20 configurations, 8 epochs and 2 ranks are run by

  a  one torchrun pair that loops over them (plain Lightning DDP, no Tune): the floor
  b  tunelight with FIFO
  c  tunelight with ASHA
  d  Optuna with Lightning's ddp_spawn
  e  Ray Train inside Ray Tune, under Ray's ASHA (needs ray[default]; 4 trials)
  f  tunelight with FIFO, of a script as it is
  g  a new torchrun of that script for each trial (4 trials)

    python benchmarks/turnaround.py                     # everything: about 10 minutes on 2 cores
    python benchmarks/turnaround.py --only a,b --setting large
    python benchmarks/turnaround.py --short             # one trial a peer but e: does it all still run?
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from figures import NAN, headline, median, show, table
from measure import PEERS, Peer, Row, Run, environment, failed, options, run_peer, run_rows
from workload import Job, make_configs

EPOCHS, RANKS, SEED = 8, 2, 7
SETTINGS = {"small": (1, (32, 64, 128)), "large": (10, (128, 256, 512))}
"""Repeats of the training images, and sizes of the hidden layer: trials of about 0.5 s and 4 s in row a."""
OTHERS, OURS = "trial_peers.py", "tunelight_sweep.py"
FEW = {"trials": 4}
ROWS = {
    "a": Peer("torchrun pair, no Tune", OTHERS, "loop"),
    "b": Peer("tunelight, FIFO", OURS, "fifo"),
    "c": Peer("tunelight, ASHA", OURS, "asha"),
    "d": Peer("Optuna, ddp_spawn", OTHERS, "optuna"),
    "e": Peer("Ray Train in Tune, ASHA", OTHERS, "ray_train", most=1, job=FEW),
    "f": Peer("tunelight, a script", OURS, "script"),
    "g": Peer("a torchrun a trial", OTHERS, "script", job=FEW),
}


class Trials(Row):
    """All runs of one peer, and what they say of trials."""

    @property
    def warm_s(self) -> float:
        """Seconds a trial over all but the first, changing trials included; median of the runs."""
        return median(warm_seconds(run.trials) for run in self.good)

    @property
    def first_report_s(self) -> float:
        """Seconds from starting the peer's process to its first report; median of the runs."""
        return median(first_report(run.trials) - run.begin for run in self.good)

    @property
    def cold_start_s(self) -> float:
        """Seconds from calling the peer's job, its driver's imports done, to its first report; median."""
        return median(first_report(run.trials) - run.called for run in self.good if run.called)

    @property
    def trials_a_minute(self) -> float:
        """Trials a minute from starting the peer's process to its result; median of the runs."""
        return median(60 * len(run.trials) / (run.done - run.begin) for run in self.good if run.done)

    @property
    def peak_mb(self) -> float:
        """Peak memory of the process tree in MB, from the runs in which it was sampled."""
        return max((run.peak_mb for run in self.good if run.peak_mb is not None), default=NAN)

    @property
    def epochs(self) -> int:
        """Epochs trained in the first good run, all trials together."""
        return sum(trial["epochs"] for trial in self.good[0].trials) if self.good else 0

    @property
    def trials(self) -> int:
        """Trials in the first good run."""
        return len(self.good[0].trials) if self.good else 0

    @property
    def accuracy(self) -> float:
        """The best accuracy that was reported."""
        return max((trial.get("acc", NAN) for run in self.good for trial in run.trials), default=NAN)

    @property
    def threads(self) -> str:
        """The threads of torch in every worker and OMP_NUM_THREADS, each value that was seen."""
        trials = [trial for run in self.good for trial in run.trials]
        torch_threads = sorted({count for trial in trials for count in trial["threads"].values()})
        omp = sorted({str(trial.get("omp")) for trial in trials})
        workers = max((len(trial["threads"]) for trial in trials), default=0)
        return f"{workers} x {'/'.join(map(str, torch_threads)) or '-'} (OMP {'/'.join(omp) or '-'})"

    def switch_ms(self, event: str) -> float:
        """Milliseconds from a trial's last report to the next one's ``enter`` or ``first_batch``."""
        return median(
            1000 * (later[event] - last_report(earlier))
            for run in self.good
            for earlier, later in pairwise(run.trials)
            if event in later and earlier["validated"]
        )

    @property
    def report_ms(self) -> float:
        """Milliseconds that rank 0 spends in a report that lets it go on; median of all."""
        return median(
            1000 * (after - before)
            for run in self.good
            for trial in run.trials
            for before, after in zip(trial["validated"], trial["reported"], strict=False)
        )


def warm_seconds(trials: Sequence[dict[str, Any]]) -> float:
    """Return the seconds a trial from the end of the first to the end of the last; NaN for one trial."""
    if len(trials) < 2:
        return NAN
    ends = sorted(trial["end"] for trial in trials)
    return float(ends[-1] - ends[0]) / (len(ends) - 1)


def first_report(trials: Sequence[dict[str, Any]]) -> float:
    """Return when the first report of a run was made, in seconds of the wall clock."""
    return min((trial["first_report"] for trial in trials if trial["first_report"]), default=NAN)


def last_report(trial: dict[str, Any]) -> float:
    """Return when a trial's last report returned, or began where it ended the trial."""
    return float(max(trial["validated"][-1:] + trial["reported"][-1:]))


def difference(row: Trials, floor: Trials) -> float:
    """Return the largest difference in loss between two rows at the epochs that both trained."""
    if not row.good or not floor.good:
        return NAN
    expected = {trial["trial"]: trial["loss"] for trial in floor.good[0].trials}
    return max(
        (
            abs(ours - theirs)
            for trial in row.good[0].trials
            for ours, theirs in zip(trial["loss"], expected.get(trial["trial"], []), strict=False)
        ),
        default=NAN,
    )


def main() -> int:
    """Run the rows that were asked for, print the tables, and return the exit status."""
    setting = tuple(SETTINGS), "trials of about 0.5 s or 4 s"
    trials = 0, "trials of each row; 0: 20, and 4 for e and g"
    args = options(__doc__, "one trial a peer but e, once", rows=tuple(ROWS), repeats=3, setting=setting, trials=trials)
    floors = measure_floors(args.repeats) if "b" in args.only else {}
    skipped = {}
    if args.short:
        skipped["e"] = "one more start of Ray takes too long for --short"
    elif importlib.util.find_spec("opencensus") is None:
        skipped["e"] = "needs ray[default] (pip install 'ray[default]'); without it, it hangs"

    def play(key: str, number: int, folder: Path) -> Run:
        trials = 1 if args.short else args.trials or ROWS[key].job.get("trials", 20)
        repeats, hidden = SETTINGS[args.setting]
        job = Job(
            folder=str(folder), ranks=RANKS, configs=make_configs(trials, SEED, hidden), epochs=EPOCHS, repeats=repeats,
            grace_period=1, reduction_factor=4,
        )  # fmt: skip
        # Memory is sampled in the first run only, so that the others are undisturbed.
        return run_peer(ROWS[key], job, 120 + (60 if key == "e" else 30) * trials, memory=number == 0)

    found = run_rows(ROWS, args, play, skipped)
    rows = {key: Trials(key, row.title, row.runs, row.skipped) for key, row in found.items()}
    print_tables(rows, args)
    declare(rows, floors, 1.15 if args.setting == "small" else 1.10)
    # Ray Train hangs after a trial now and then.
    return failed(rows, theirs=lambda row, error: row.key == "e" and "did not end within" in error)


def time_floor(what: str, at_once: int = 1) -> tuple[float, float]:
    """Time ``peers/floor.py ray|imports`` in as many processes at once, the slowest of which counts.

    Returns the seconds of what it is about, and those from the start of the process (interpreter included).
    """
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, str(PEERS / "floor.py"), what]
        begin = time.time()
        processes = [
            subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=log) for _ in range(at_once)
        ]
        told = [process.communicate(timeout=120)[0] for process in processes]
    took, ready = max((json.loads(one.splitlines()[-1]) for one in told), key=lambda one: float(one[1]))
    return took, ready - begin


def measure_floors(repeats: int) -> dict[str, float]:
    """Return medians of the seconds that no cold start avoids, once the files are in the page cache."""
    time_floor("imports")
    ray = [time_floor("ray") for _ in range(repeats)]
    alone = [time_floor("imports")[1] for _ in range(repeats)]
    together = [time_floor("imports", RANKS)[1] for _ in range(repeats)]
    return {
        "ray.init": median(init for init, _ in ray),
        "ray": median(start for _, start in ray),
        "imports": median(alone),
        "imports together": median(together),
    }


def print_tables(rows: dict[str, Trials], args: Namespace) -> None:
    """Print what was measured."""
    print(
        f"\nturnaround, {args.setting} setting: {EPOCHS} epochs, {RANKS} ranks, {os.cpu_count()} cores. "
        "Seconds a trial: warm trials (all but the first).\nPeak memory: PSS summed over the peer's process "
        "tree, in its first run. Medians of the runs.\n"
    )
    floor = rows.get("a", Trials("a", ""))
    head = ["", "row", "runs", "trials", "epochs", "s/trial", "first report s", "trials/min", "peak MB"]
    head += ["threads/worker", "best acc", "loss vs a"]
    lines = [
        [
            *(row.key, row.title, str(len(row.good)), str(row.trials), str(row.epochs), show(row.warm_s)),
            *(show(row.first_report_s), show(row.trials_a_minute, 1), show(row.peak_mb, 0), row.threads),
            *(show(row.accuracy, 3), show(difference(row, floor), 6)),
        ]
        for row in rows.values()
    ]
    print(table(head, lines))
    head = ["", "last report -> next train()", "last report -> next first batch", "a report"]
    lines = [
        [row.key, *(f"{show(row.switch_ms(to), 0)} ms" for to in ("enter", "first_batch")), f"{show(row.report_ms)} ms"]
        for row in rows.values()
    ]
    print("\n" + table(head, lines) + "\n")


def declare(rows: dict[str, Trials], floors: dict[str, float], most: float) -> None:
    """Declare the figures by which this benchmark is known."""
    a, b, c, d, e, f, g = (rows.get(key, Trials(key, "")) for key in ROWS)
    n = f"n = {len(b.good)}"
    headline("a warm trial under FIFO / one torchrun pair, no Tune", b.warm_s / a.warm_s, of=n, most=most)
    headline("a warm trial of a script, more than one of a train function", f.warm_s - b.warm_s, "s", of=n, most=0.35)
    headline("a warm trial of Optuna with ddp_spawn / tunelight's", d.warm_s / b.warm_s, of=n, least=8)
    minute = "trials a minute, cold start included:"
    trains = c.trials_a_minute / e.trials_a_minute
    headline(f"{minute} ASHA / Ray Train in Tune, Ray's ASHA", trains, least=30, digits=1)
    headline(f"{minute} a script on a gang / a torchrun a trial", f.trials_a_minute / g.trials_a_minute, least=5)
    headline(f"{minute} FIFO / one torchrun pair", b.trials_a_minute / a.trials_a_minute, of=n)
    headline("first report, tunelight / one torchrun pair", b.first_report_s / a.first_report_s, of=n)
    if floors:
        cold = floors["ray.init"] + floors["imports"]
        headline("tunelight.run to its first report / ray.init and imports", b.cold_start_s / cold, of=n, most=1.3)
    headline("peak memory, tunelight / one torchrun pair", b.peak_mb / a.peak_mb)
    headline("a trial's last report to the next train function", b.switch_ms("enter") / 1000, "s", of=n, digits=3)
    headline("a report", b.report_ms / 1000, "s", of=n, digits=4)
    if floors:
        paired = b.cold_start_s / (floors["ray.init"] + floors["imports together"])
        print(
            f"  tunelight.run to its first report {show(b.cold_start_s)} s; "
            f"ray.init {show(floors['ray.init'])} s; a worker's start and imports {show(floors['imports'])} s "
            f"alone, {show(floors['imports together'])} s with {RANKS} at once (then the ratio is "
            f"{show(paired)}); a driver's start, imports and ray.init {show(floors['ray'])} s"
        )


if __name__ == "__main__":
    sys.exit(main())
