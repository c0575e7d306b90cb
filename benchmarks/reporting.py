"""Measure what showing a sweep costs: its report, and record, TensorBoard and progress while it runs.

A sweep is recorded as Tune's callbacks would (no training, no Ray): 1,000 trials of 81 reports each. Then its report is
made in a new process, imports included; and what each report of a trial cost its driver is put as a share of its time
at 20 reports a second, a redrawn terminal included. The exit status is 1 where a limit is passed: 5 s (of processor
time; the wall's is shown too) and 10 MB for the report, 2 % of the driver's time.

    python benchmarks/reporting.py          # 1,000 trials of 81 reports
    python benchmarks/reporting.py --short  # 60 trials of 9 reports: does it still run? Judges nothing but size.
"""

from __future__ import annotations

import io
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from figures import headline, table
from measure import options
from rich.console import Console

from tunelight.extras.tensorboard import TensorBoardCallback
from tunelight.record import RecordCallback, write_sweep_file
from tunelight.reporting import ProgressCallback

RATE = 20.0
"""Reports a second, of all trials together."""
LIMIT_S, LIMIT_MB, LIMIT_SHARE = 5.0, 10.0, 0.02
AT_ONCE = 8
_MAKE = (
    "import sys, time; wall = time.perf_counter(); from tunelight.results import SweepResults; "
    "from tunelight.reporting import report; path = report(SweepResults.load(sys.argv[1]), sys.argv[2]); "
    "print(time.process_time(), time.perf_counter() - wall, path.stat().st_size)"
)


class Terminal(io.StringIO):
    """A terminal that keeps nothing."""

    def isatty(self) -> bool:
        """Say that a table may be redrawn here."""
        return True

    def write(self, text: str) -> int:
        """Take the text, and forget it."""
        return len(text)


class Driver:
    """What a sweep's driver tells its callbacks, and how long each of them took to hear it (processor seconds)."""

    def __init__(self, folder: Path, trials: int, reports: int) -> None:
        rungs: Any = SimpleNamespace(
            milestones=lambda: [1, 3, 9, 27], time_attr="training_iteration", reason=lambda _: None
        )
        told: dict[str, Any] = {
            "metric": "loss",
            "mode": "min",
            "num_samples": trials,
            "workers": 2,
            "max_epochs": reports,
        }
        self.now = 1_000_000.0
        write_sweep_file(folder, {"scheduler": "asha", **told})
        record = RecordCallback(folder, scheduler=rungs, clock=self.clock, **told)
        console = Console(file=Terminal(), force_terminal=True, width=120, height=40)
        self.callbacks: dict[str, Any] = {
            "record": record,
            "TensorBoard": TensorBoardCallback(folder, record.state, self.clock),
            "progress": ProgressCallback(record.state, total=trials, console=console, clock=self.clock),
        }
        self.spent = dict.fromkeys(self.callbacks, 0.0)
        self.trials: list[Any] = []
        self._folder, self._wanted, self._reports = folder, trials, reports
        self._chance = random.Random(0)

    def clock(self) -> float:
        """Return the sweep's time, which passes with its reports."""
        return self.now

    def run(self) -> int:
        """Run all trials, ``AT_ONCE`` of them side by side; return how many reports they made."""
        made, live = 0, list[Any]()
        while len(self.trials) < self._wanted or live:
            while len(live) < AT_ONCE and len(self.trials) < self._wanted:
                live.append(self._start())
            for trial in list(live):
                self.now += 1 / RATE
                made += 1
                trial.number += 1
                self._tell("on_trial_result", trial=trial, result=self._result(trial))
                self._tell("on_step_end")
                if trial.number >= self._reports:
                    live.remove(trial)
                    trial.last_result = {"done": True}
                    self._tell("on_trial_complete", trial=trial)
                    trial.status = "TERMINATED"
        self._tell("on_experiment_end")
        return made

    def _start(self) -> Any:
        number = len(self.trials)
        lr, drop = 10 ** self._chance.uniform(-4, -1), self._chance.random()
        config = {"lr": lr, "drop": drop, "hidden": self._chance.choice([32, 64, 128])}
        config |= {f"key{index}": self._chance.random() for index in range(5)}
        if config["hidden"] == 64:
            config["momentum"] = self._chance.random()
        trial = SimpleNamespace(
            trial_id=f"{number:05d}", config=config, status="PENDING", number=0, last_result={},
            path=str(self._folder / f"trial_{number:05d}"), worth=abs(math.log10(lr) + 2.5) / 5,
            get_error=lambda: None,
        )  # fmt: skip
        self.trials.append(trial)
        self.callbacks["record"].add(trial)
        self._tell("on_trial_start", trial=trial)
        trial.status = "RUNNING"
        return trial

    def _result(self, trial: Any) -> dict[str, Any]:
        loss = trial.worth + math.exp(-0.1 * trial.number) + self._chance.uniform(0, 0.02)
        gang = {"gang": "g", "nodes": ["a#1", "a#1"], "warm": True, "began": self.now - 0.5, "ready": self.now - 0.3}
        own = {"number": trial.number, "workers": 2, "gang": gang if trial.number == 1 else None}
        return {
            "loss": loss, "accuracy": 1 - loss, "lr": 0.1, "training_iteration": trial.number,
            "epoch": trial.number - 1, "timestamp": self.now, "_tunelight": own, "done": False,
        }  # fmt: skip

    def _tell(self, name: str, **about: Any) -> None:
        for key, callback in self.callbacks.items():
            began = time.process_time()
            getattr(callback, name)(iteration=1, trials=self.trials, **about)
            self.spent[key] += time.process_time() - began


def main() -> int:
    """Record a sweep, make its report, print what both cost, and return the exit status."""
    short = options(__doc__, "60 trials of 9 reports; only the size is judged").short
    trials, reports = (60, 9) if short else (1000, 81)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "sweep")
        folder.mkdir()
        driver = Driver(folder, trials, reports)
        made = driver.run()
        target = str(Path(scratch, "report.html"))
        run = subprocess.run(
            [sys.executable, "-c", _MAKE, str(folder), target], check=True, capture_output=True, text=True
        )
    cpu, wall, size = map(float, run.stdout.split())
    shares = {key: seconds / made * RATE for key, seconds in driver.spent.items()}
    share = sum(shares.values())
    print(f"\nA sweep of {trials:,} trials with {reports} reports each ({made:,} in all)\n")
    rows = [[key, f"{driver.spent[key] / made * 1e6:.0f} us", f"{one:.2%}"] for key, one in shares.items()]
    rows.append(["all three", f"{sum(driver.spent.values()) / made * 1e6:.0f} us", f"{share:.2%}"])
    print(table(["while it runs", "a report", f"of the driver's time at {RATE:.0f} a second"], rows))
    print()
    line = ["HTML", f"{cpu:.1f} s", f"{wall:.1f} s", f"{size / 1e6:.1f} MB"]
    print(table(["its report", "processor", "wall", "size"], [line]) + "\n")
    kept = [headline(f"the report of {trials:,} trials, processor time", cpu, "s", most=LIMIT_S, digits=1)]
    size_kept = headline(f"the report of {trials:,} trials, size", size / 1e6, "MB", most=LIMIT_MB, digits=1)
    what = f"the driver's time that record, TensorBoard and progress take, at {RATE:.0f} reports a second"
    kept.append(headline(what, share, "", most=LIMIT_SHARE, digits=3))
    return 0 if size_kept and (short or all(kept)) else 1


if __name__ == "__main__":
    sys.exit(main())
