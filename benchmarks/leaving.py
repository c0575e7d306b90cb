"""End the drivers of sweeps that train by SIGTERM: how soon, and what it costs.

    python benchmarks/leaving.py            # 10 signals: about four minutes
    python benchmarks/leaving.py --short    # for CI

Trials have two workers, and a step takes 40 ms. A driver gets SIGTERM at a random moment, and SIGKILL to its whole
process group ten seconds later; then the same command goes on. ``trained again``: the steps that were trained before
and after.

The exit status is 1 if a driver did not exit with 75, a step was trained again, a report is lost, or metrics are not
those of a sweep that nobody disturbs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from figures import headline, median, middle_and_most, spread, table
from jobs import local_ray
from leaving_sweep import EPOCHS, WAIT_S, run, steps, until
from measure import PEERS, options

import tunelight as tl
from tunelight.record.record import replayed

GRACE_S = 10.0


class Book:
    """What was measured, line by line, and which promises were broken."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []
        self.wrong: list[str] = []

    def times(self, what: str, taken: list[float]) -> None:
        """Note how long something took each time, and declare it."""
        if taken:
            self.lines.append([what, str(len(taken)), *middle_and_most(taken)])
            headline(what, median(taken), "s", of=spread(taken))

    def promise(self, kept: bool, otherwise: str) -> None:
        """Note whether a promise was kept."""
        self.wrong += [] if kept else [otherwise]

    def trained_again(self, after: str, log_files: list[Path], of: str) -> None:
        """Note how many steps were trained twice."""
        trained = [Counter((trial, step) for trial, step, _ in steps(log)) for log in log_files]
        again = sum(times - 1 for one in trained for times in one.values())
        kept = headline(f"steps trained again after {after}", again, "", of=of, most=0, digits=0)
        self.promise(kept, f"{after}: {again} steps were trained again")


def training(folder: Path) -> int:
    """Return how often trials have begun to train."""
    return sum(line["kind"] == "training" for line, _ in replayed(folder)) if (folder / "record.jsonl").exists() else 0


def begun(driver: subprocess.Popen[bytes], folder: Path, before: int) -> bool:
    """Tell whether a trial has begun to train since then, or the driver has ended."""
    return training(folder) > before or driver.poll() is not None


def told(results: tl.SweepResults) -> list[Any]:
    """Return the reports of all trials."""
    return [[(one["training_iteration"], one["val_loss"]) for one in trial.history] for trial in results.trials]


def signals(count: int, folder: Path, wanted: list[Any], rng: random.Random, book: Book) -> None:
    """End drivers by SIGTERM at random moments, ``count`` times in all."""
    taken, codes, names = list[float](), list[int](), list[str]()
    while len(taken) < count:
        name = f"signals-{len(names)}"
        log = folder / f"{name}.txt"
        names.append(name)
        ended = False
        while not ended:
            environment = {**os.environ, "TUNELIGHT_GRACE_S": str(GRACE_S - 1)}
            command = [sys.executable, str(PEERS / "leaving_sweep.py"), str(folder), name, "2", str(log)]
            with (folder / f"{name}.log").open("ab") as output:
                driver = subprocess.Popen(
                    command, stdout=output, stderr=output, env=environment, start_new_session=True
                )
            if len(taken) < count:
                until(partial(begun, driver, folder / name, training(folder / name)), "training")
                time.sleep(rng.uniform(0.0, 6.0))
                if driver.poll() is None:
                    at = time.time()
                    driver.send_signal(signal.SIGTERM)
                    try:
                        driver.wait(GRACE_S)
                    except subprocess.TimeoutExpired:
                        os.killpg(driver.pid, signal.SIGKILL)
                    codes.append(driver.wait())
                    taken.append(time.time() - at)
            ended = driver.wait(WAIT_S) == 0
            if driver.returncode not in (0, 75):
                book.promise(False, f"{name}: exit code {driver.returncode}")
                if len(book.wrong) > 3:
                    return
        book.promise(told(tl.SweepResults.load(folder / name)) == wanted[:2], f"{name}: other metrics")
    ways = ", ".join(f"{code} ({times} times)" for code, times in Counter(codes).items())
    print(f"Exit codes: {ways}. Sweeps: {len(names)}.")
    book.times("SIGTERM: the driver has ended after", taken)
    book.trained_again("SIGTERM", [folder / f"{name}.txt" for name in names], f"{len(taken)} signals")


def main() -> int:
    """Run the parts, print a table, and return the exit status."""
    args = options(__doc__, "one signal", seed=(1, "of the moments"))
    rng, book = random.Random(args.seed), Book()
    with tempfile.TemporaryDirectory(prefix="leaving-") as place:
        folder = Path(place)
        with local_ray(4, include_dashboard=False):
            wanted = told(run(str(folder), "undisturbed", 2))
        book.promise(
            [len(trial) for trial in wanted] == [EPOCHS, EPOCHS],
            "the sweep that nothing ends has not come to its end",
        )
        signals(1 if args.short else 10, folder, wanted, rng, book)
    print("\n" + table(["", "times", "median s", "most s"], book.lines) + "\n")
    print("\n".join(book.wrong) or "All promises were kept.")
    return bool(book.wrong)


if __name__ == "__main__":
    sys.exit(main())
