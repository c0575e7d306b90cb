"""Branch a trial that trains, again and again: how soon the branch trains, and whether it trains as its parent does.

    python benchmarks/branching.py                  # 20 on a free gang, 20 where one yields, 6 to their end
    python benchmarks/branching.py --branches 4 --whole 2
    python benchmarks/branching.py --short          # for CI

Measured is the time from the command (`AttachedSweep.branch`) at a random moment to the branch's first training step,
as its rank 0 writes it down; trials have two workers, and a step takes 40 ms. "Free": the workers of an ended trial
wait. "Yields": all CPUs are taken, and the least promising other trial gives its workers up. "To the end": branches
with nothing changed, whose metrics have to be those with which the parent goes on, bit by bit. The exit status is 1 if
they are not, or a report is lost.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import ray
from figures import headline, median, spread, table
from leaving_sweep import EPOCHS, STEP_S, STEPS, beside, steps, until

import tunelight as tl

LONG = 10_000
"""Epochs of a parent that is stopped in the end."""


def first_step(log: Path, trial: str) -> float | None:
    """Return when a trial took its first step; None where it has not."""
    return next((at for name, _, at in steps(log) if name == trial), None)


def trains(log: Path, trials: int, since: float) -> bool:
    """Tell whether so many trials have taken a step since then."""
    return len({name for name, _, at in steps(log) if at > since}) >= trials


def with_person(person: Callable[[Any], None], folder: Path, name: str, trials: int, **more: Any) -> tl.SweepResults:
    """Run a sweep with somebody beside it, once all of its trials train."""
    log = folder / f"{name}.txt"

    def act() -> None:
        until(partial(trains, log, trials, 0.0), "the sweep to train")
        person(tl.attach(name, folder))

    return beside(act, str(folder), name, trials, log=str(log), **more)


def soon(count: int, folder: Path, name: str, trials: int, rng: random.Random) -> list[float]:
    """Branch the first of so many trials ``count`` times; return the seconds to each branch's first step."""
    log, taken = folder / f"{name}.txt", list[float]()

    def person(sweep: Any) -> None:
        for number in range(-1, count):  # the first one makes a gang, and is not measured
            time.sleep(rng.uniform(0.5, 1.5))
            asked = time.time()
            branch = sweep.branch(0, {"model.lr": rng.uniform(0.001, 0.1)}).split()[1]
            at = until(partial(first_step, log, branch), f"the first step of {branch}")
            if number >= 0:
                taken.append(at - asked)
            sweep.stop(branch)
            ended = time.time()
            until(partial(trains, log, trials, ended), "all others to train again")
        sweep.stop()

    with_person(person, folder, name, trials, epochs=LONG)
    return taken


def to_the_end(count: int, folder: Path, rng: random.Random) -> list[str]:
    """Branch a trial, with nothing changed, at random moments; return what is wrong with the branches' metrics."""

    def person(sweep: Any) -> None:
        for _ in range(count):
            time.sleep(rng.uniform(0.0, 0.9 * EPOCHS * STEPS * STEP_S / count))
            sweep.branch(0)

    results = with_person(person, folder, "whole", 1)
    parent, *branches = results.every_trial
    wrong = []
    for trial in (parent, *branches):
        number = 0 if trial.branch is None else trial.branch.number
        reports = [(one["training_iteration"], one["val_loss"]) for one in trial.history]
        if [one for one, _ in reports] != list(range(number + 1, EPOCHS + 1)):
            wrong.append(f"trial {trial.id} has lost a report, or has one twice")
        elif reports != [(one["training_iteration"], one["val_loss"]) for one in parent.history[number:]]:
            wrong.append(f"trial {trial.id} does not train as its parent does from report {number} on")
    good, of = len(branches) - len(wrong), f"{len(branches)} of {count} began"
    what = "branches with nothing changed that train bit by bit as their parent"
    headline(what, good / max(1, count), "", of=of, least=1)
    where = ", ".join(trial.branch.where for trial in branches if trial.branch is not None)
    print(f"{len(branches) - len(wrong)} of {count} branches train bit by bit as their parent goes on: after {where}.")
    return wrong if len(branches) == count else [*wrong, f"{len(branches)} of {count} branches began"]


def main() -> int:
    """Run the three parts, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=20, help="of each of the two parts that are timed (default 20)")
    parser.add_argument("--whole", type=int, default=6, help="branches that train to their end (default 6)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default 1)")
    parser.add_argument("--short", action="store_true", help="two branches of each part, one to its end")
    args = parser.parse_args()
    count, whole = (2, 1) if args.short else (args.branches, args.whole)
    rng, rows = random.Random(args.seed), list[list[str]]()
    with tempfile.TemporaryDirectory(prefix="branching-") as place:
        for name, trials in (("free", 1), ("yields", 2)):
            ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
            taken = soon(count, Path(place), name, trials, rng)
            ray.shutdown()
            what = "its gang is free" if name == "free" else "another trial yields"
            headline(f"a branch's first training step, {what}", median(taken), "s", of=spread(taken))
            rows.append([name, str(len(taken)), f"{median(taken):.2f}", f"{max(taken):.2f}"])
        ray.init(address="local", num_cpus=4 * (1 + whole), include_dashboard=False, log_to_driver=False)
        wrong = to_the_end(whole, Path(place), rng)
        ray.shutdown()
    print(table(["a gang", "branches", "s to the first step, median", "most s"], rows, False))
    for what in wrong:
        print(what)
    print("All promises were kept." if not wrong else f"{len(wrong)} promises were broken.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
