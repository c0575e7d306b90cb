"""Kill sweeps with everything that they run, resume them, and check that nothing is lost and nothing is guessed.

    python benchmarks/resumed.py                  # digits on 2 ranks, 40 trials: "auto", with repeats, folds
    python benchmarks/resumed.py --kinds repeats --trials 20
    python benchmarks/resumed.py --short          # one kind, few trials, for CI

Each sweep's driver is killed (SIGKILL) twice: after a third of its trials, and once it has trained its best
configurations again, or after two thirds. Then it is resumed to its end. ``as the record implies``: of how many trials
of the search the configuration is what the searcher suggests once more, given the record up to that trial alone, so
that interrupted or not, the same is suggested. It exits with 1 if a report or a trial is lost, or a suggestion differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from figures import headline, table
from resumed_sweep import SPACE, settings_of

import tunelight as tl
from tunelight.record import read_lines
from tunelight.searchers.choose import build_searcher
from tunelight.settings import Settings
from tunelight.sweep.replay import replay_searcher

KINDS: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "repeats": {"repeats": {"top": 3, "repeats": 3}},
    "folds": {"repeats": {"folds": 3, "top": 3}},
}
"""What each sweep is given beside ``searcher="auto"``."""
WAIT_S = 300.0


def start(folder: Path, name: str, settings: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start the sweep's driver, or resume it, in a process group of its own."""
    script = Path(__file__).parent / "peers" / "resumed_sweep.py"
    command = [sys.executable, str(script), str(folder), name, json.dumps(settings)]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def lines_of(folder: Path) -> Sequence[Mapping[str, Any]]:
    """Return the record so far."""
    return read_lines(folder) if (folder / "record.jsonl").exists() else []


def kill_after(driver: subprocess.Popen[bytes], folder: Path, trials: int, again: int) -> int:
    """Kill a driver once so many trials were created, so many of them repetitions; return how many reports there are.

    A driver that ends by itself before is left alone.
    """
    end = time.monotonic() + WAIT_S
    while driver.poll() is None:
        lines = lines_of(folder)
        made = [line for line in lines if line["kind"] == "trial"]
        if len(made) >= trials and sum(line.get("repeats") is not None for line in made) >= again:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            return reports(lines_of(folder))
        if time.monotonic() > end:
            os.killpg(driver.pid, signal.SIGKILL)
            raise SystemExit(f"{folder.name}: {trials} trials were not created within {WAIT_S:.0f} s")
        time.sleep(0.1)
    return reports(lines_of(folder))


def reports(lines: Sequence[Mapping[str, Any]]) -> int:
    """Return how many reports a record holds."""
    return sum(line["kind"] == "report" for line in lines)


def implied(folder: Path, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return of how many trials of the search the record before them implies the configuration, and of how many in all.

    A fresh searcher is rebuilt from the lines before a trial's first one, as at a resumption, and asked for it.
    """
    space = tl.SearchSpace.of(SPACE)
    asked = Settings(**{**space.settings, **settings_of(json.dumps(dict(settings))), "seed": 1, "workers": 2})
    lines = read_lines(folder)
    same = count = 0
    for number, line in enumerate(lines):
        if line["kind"] == "trial" and line.get("repeats") is None:
            searcher: Any = build_searcher(space, asked)
            replay_searcher(lines[:number], searcher, space, foreign=False)
            count += 1
            same += json.loads(json.dumps(searcher.suggest(line["trial"]))) == line["config"]
    return same, count


def play(kind: str, folder: Path, trials: int) -> tuple[list[str], bool]:
    """Run one sweep with its kills; return its line of the table, and whether all is well."""
    settings = {"searcher": "auto", "num_samples": trials, **KINDS[kind]}
    sweep = folder / kind
    seen = kill_after(start(folder, kind, settings), sweep, trials // 3, 0)
    second = (trials, 2) if "repeats" in settings else (2 * trials // 3, 0)
    before = kill_after(start(folder, kind, settings), sweep, *second)
    last = start(folder, kind, settings)
    if last.wait(WAIT_S) != 0:
        raise SystemExit((folder / f"{kind}.log").read_text()[-3000:])
    results = tl.SweepResults.load(sweep)
    same, count = implied(sweep, settings)
    held = sum(len(trial.history) for trial in results.every_trial)
    well = same == count and seen <= before <= held and count == trials
    well = well and all(trial.state in ("FINISHED", "STOPPED") for trial in results.every_trial)
    again = len(results.repetitions)
    best = results.best
    print((folder / f"{kind}.log").read_text().strip().rpartition("\n\n")[2], flush=True)
    line = [kind, str(count), str(again), f"{seen}, {before}", str(held), f"{same} of {count}"]
    what = f"{kind}, killed twice: suggestions that the record implies"
    headline(what, same / max(1, count), "", of=f"{same} of {count}", least=1)
    headline(f"{kind}, killed twice: reports lost", max(0, before - held), "", of=f"of {held}", most=0, digits=0)
    return [*line, "none" if best is None else f"{best.id}: {best.value:.4f}", "yes" if well else "NO"], well


def main() -> int:
    """Run the benchmark; return 1 if anything was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--storage", type=Path, help="where the sweeps are kept (default: a temporary folder)")
    parser.add_argument("--short", action="store_true", help="one kind, few trials")
    args = parser.parse_args()
    if args.short:
        args.kinds, args.trials = ["repeats"], 6
    head = (
        "sweep",
        "trials",
        "repetitions",
        "reports when killed",
        "in the end",
        "as the record implies",
        "best",
        "well",
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.storage or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        played = [play(kind, folder, args.trials) for kind in args.kinds]
    print(table(head, [line for line, _ in played], markdown=True))
    return 0 if all(well for _, well in played) else 1


if __name__ == "__main__":
    sys.exit(main())
