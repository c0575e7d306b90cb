"""Compare searchers and schedulers by what they find for the same worker-hours, on trainings that are really made.

    python benchmarks/search.py                       # the design half of the tasks: 10 seeds, about an hour
    python benchmarks/search.py --half final          # the other half, which no choice was made by
    python benchmarks/search.py --rows "ASHA, auto" --tasks wine-mlp --seeds 30 --slots 8
    python benchmarks/search.py --short               # one task, two seeds, few epochs: does it all still run?

Each row plays a task for so many worker-hours of virtual time, an epoch taking a minute on one worker; tunelight's rows
run in ``tl.simulate`` with the real schedulers, searchers and controller, starts and idle gangs included, peers in
their own code without either. What is judged is the *true* loss of the configuration that would be chosen so far (by
the best report): the mean over three trainings by seeds that no sweep has seen. Regret is its distance from the best
truth that any row found for the task, as a share of the median random configuration's.

The task's training is cheap (half a second for one configuration), so nothing is looked up in a table: of the nearest
one of a few hundred recorded configurations, too little follows for another.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from curve_tasks import TASKS
from live_curves import space_of, truth
from search_rows import BASE, OURS, PEERS, Played, Row

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the worker-hours, where the choice is judged."""
RESAMPLES = 2000
ALL: dict[str, Row] = {**OURS, **{name: row for name, (_, row) in PEERS.items()}}


def rows_there() -> dict[str, Row]:
    """Return the rows whose packages are installed."""
    found = dict(OURS)
    for name, (package, row) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            sys.stdout.write(f"{name}: left out, for {package} is not installed.\n")
        else:
            found[name] = row
    return found


class Answer(NamedTuple):
    """What a row came to with one seed: the truth of its choice at each share of the worker-hours."""

    row: str
    seed: int
    truths: list[float]
    hours: float
    took_s: float


def one(given: tuple[str, str, int, int, float, Path]) -> Answer:
    """Play a row once, and train what it chose by other seeds."""
    name, task_name, seed, slots, hours, cache = given
    torch.set_num_threads(1)
    began = time.perf_counter()
    task = TASKS[task_name]
    played: Played = ALL[name](task, seed, slots, hours)
    truths = []
    for share in SHARES:
        before = [choice for choice in played.choices if choice.hours <= share * hours]
        truths.append(truth(task, before[-1].config, cache) if before else float("nan"))
    return Answer(name, seed, truths, played.hours, time.perf_counter() - began)


def median_random(task_name: str, cache: Path, count: int) -> float:
    """Return the median truth of so many random configurations."""
    space, rng = space_of(task_name), np.random.RandomState(12345)
    return float(np.median([truth(TASKS[task_name], space.sample(rng), cache) for _ in range(count)]))


def reached(found: np.ndarray, base: np.ndarray) -> str:
    """Return the first share at which a row's mean regret is at most what the base ends with."""
    good = np.nonzero(np.nanmean(found, 0) <= np.nanmean(base[:, -1]))[0]
    return f"{SHARES[good[0]]:g}" if len(good) else "-"


def paired(found: np.ndarray, base: np.ndarray) -> tuple[float, float, float]:
    """Return the mean difference from the base at the end, by seed, with its 95 % bootstrap interval."""
    gaps = found[:, -1] - base[:, -1]
    drawn = np.random.default_rng(0).integers(0, len(gaps), (RESAMPLES, len(gaps)))
    low, high = np.percentile(gaps[drawn].mean(1), [2.5, 97.5])
    return float(gaps.mean()), float(low), float(high)


def show(task_name: str, results: dict[str, np.ndarray], hours: dict[str, float], scale: tuple[float, float]) -> None:
    """Print a task's table."""
    best, median = scale
    regrets = {name: (truths - best) / (median - best) for name, truths in results.items()}
    print(f"\n{task_name} ({TASKS[task_name].half}): {TASKS[task_name].about}")
    print(f"best truth {best:.4g}, median random {median:.4g}; mean regret at each share of the worker-hours")
    head = "".join(f"{share:>8g}" for share in SHARES)
    print(f"  {'':28}{head}  reaches  against {BASE!r} at the end, paired [95 %]  rank  hours")
    order = sorted(regrets, key=lambda name: float(np.nanmean(regrets[name][:, -1])))
    for name, found in regrets.items():
        gap, low, high = paired(found, regrets[BASE])
        print(
            f"  {name:28}"
            + "".join(f"{value:8.3f}" for value in np.nanmean(found, 0))
            + f"{reached(found, regrets[BASE]):>9}  {gap:+.3f} [{low:+.3f}, {high:+.3f}]"
            + f"{order.index(name) + 1:>10}{hours[name]:8.1f}",
            flush=True,
        )


def play(tasks: Sequence[str], rows: Sequence[str], args: Any) -> None:
    """Play all rows on all tasks, and print each task's table when it is done."""
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for task in tasks:
            jobs = [(row, task, seed, args.slots, args.hours, args.cache) for seed in range(args.seeds) for row in rows]
            answers = sorted(pool.imap_unordered(one, jobs), key=lambda answer: answer.seed)
            by_row = {row: [answer for answer in answers if answer.row == row] for row in rows}
            results = {row: np.array([answer.truths for answer in given]) for row, given in by_row.items()}
            hours = {row: float(np.mean([answer.hours for answer in given])) for row, given in by_row.items()}
            best = min(float(np.nanmin(truths)) for truths in results.values())
            show(task, results, hours, (best, median_random(task, args.cache, args.random)))
            took = (f"{row} {np.mean([answer.took_s for answer in given]):.0f}" for row, given in by_row.items())
            print(f"  seconds of real time: {', '.join(took)}")


def main() -> int:
    """Run the benchmark; it judges nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["design", "final"], default="design")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="these instead of a half")
    parser.add_argument("--rows", nargs="+", choices=[*OURS, *PEERS], help=f"these, and {BASE!r}")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--hours", type=float, default=16.0, help="worker-hours of a sweep; an epoch takes a minute")
    parser.add_argument("--random", type=int, default=40, help="random configurations that the median is of")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path("runs", "search"), help="where truths are kept")
    parser.add_argument("--short", action="store_true", help="one task, two seeds, few epochs; measures nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks = args.tasks or [name for name, task in TASKS.items() if task.half == args.half]
    there = rows_there()
    rows = [BASE, *(row for row in args.rows or there if row in there and row != BASE)]
    if args.short:
        tasks, rows = ["wine-mlp"], [BASE, "ASHA, auto", "one_epoch, tpe", "Optuna TPE, its ASHA"]
        args.seeds, args.hours, args.random, args.slots = 1, 2.0, 2, 4
    play(tasks, rows, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
