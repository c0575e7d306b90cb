"""Measure which of Optuna's importance evaluators is right at how many trials, and how long it takes.

    python benchmarks/importances.py              # about ten minutes on one core
    python benchmarks/importances.py --short      # few repetitions of few trials
    python benchmarks/importances.py --trained design --seeds 20   # sweeps that are trained: half an hour on one core

A sweep under ASHA (rungs at 1, 3, 9, 27 and 81 epochs, a third goes on) is played on curves whose importances are
known: synthetic ones, of which each key's share of the variance follows from how they are made, and those that come
along with the simulator. Their truth is fANOVA's word on all 260 configurations, on the mean of three seeds, at the
epoch at which trials are compared. Every configuration also has two keys without any effect.

`off`: how far importances are from the truth, half the sum of absolute differences (0 is right, 1 is all wrong).
`first`: how often the key that comes out first is the right one, or nearly as important. `no effect`: what the two keys
are given together, on average and at worst. Trials are compared at the same epoch, as the figure does, or ("any") by
each trial's best report of all.

`--trained` prints another table: in how many sweeps of 100 trials under ASHA, each really trained, a key without effect
is given an importance below 0.05, for each task of a half of `peers/curve_tasks.py`, by random search and by "auto".
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import headline

import tunelight as tl
from tests.world import simulate
from tests.world.sources import read_table
from tunelight.results.figures.data import Column, columns, same_epoch
from tunelight.results.figures.importance import EVALUATORS, evaluate, importances_of
from tunelight.searchers import RandomSearcher

RUNGS = (1, 3, 9, 27, 81)
FACTOR = 3
MOST = 2 / 3
"""Share of the trials that has to have come to the epoch at which they are compared, as in the figure."""
NEARLY = 0.8
"""Share of the largest importance from which on a key may come out first as well."""
DEAD = ("nothing", "naught")
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """Configurations, each one's best value so far by epoch (more is better), and where the truth is from."""

    configs: Sequence[Mapping[str, Any]]
    best: Values
    task: str

    def truth(self, epoch: int) -> Mapping[str, float]:
        """Return the true importances of values at an epoch."""
        return SHARES if self.task == "synthetic" else truth_of(self.task, epoch)


EFFECTS = {"lr": 3.0, "hidden": 1.5, "optimizer": 0.75, "dropout": 0.4}
SPREAD = {"lr": 4 / 45, "hidden": 5 / 36, "optimizer": 1 / 4, "dropout": 1 / 12}
"""Variances of the effects below, each between 0 and 1."""
WHOLE = sum(EFFECTS[key] ** 2 * SPREAD[key] for key in EFFECTS)
SHARES = {**{key: EFFECTS[key] ** 2 * SPREAD[key] / WHOLE for key in EFFECTS}, **dict.fromkeys(DEAD, 0.0)}


def synthetic(count: int, rng: np.random.Generator) -> Sample:
    """Draw configurations whose loss is a sum of one effect a key, and falls with the epochs."""
    configs: list[dict[str, Any]] = [
        {
            "lr": float(10 ** rng.uniform(-5, -1)),
            "hidden": int(rng.choice([16, 32, 64, 128])),
            "optimizer": str(rng.choice(["adam", "sgd"])),
            "dropout": float(rng.uniform(0, 0.7)),
            **{name: float(rng.uniform(0, 1)) for name in DEAD},
        }
        for _ in range(count)
    ]
    parts = {
        "lr": np.array([(math.log10(one["lr"]) + 3) ** 2 / 4 for one in configs]),
        "hidden": np.array([1 - math.log2(one["hidden"] / 16) / 3 for one in configs]),
        "optimizer": np.array([float(one["optimizer"] == "sgd") for one in configs]),
        "dropout": np.array([one["dropout"] / 0.7 for one in configs]),
    }
    end = np.sum([EFFECTS[name] * parts[name] for name in parts], axis=0)
    epochs = np.arange(1, RUNGS[-1] + 1)
    losses = end[:, None] + 4 * np.exp(-epochs / 8)[None, :] + rng.normal(0, 0.05, (count, RUNGS[-1]))
    return Sample(configs, np.maximum.accumulate(-losses, axis=1), "synthetic")


@functools.cache
def task_of(name: str) -> tuple[list[dict[str, Any]], Values]:
    """Return a recorded task's configurations, and their accuracy by configuration, seed and epoch."""
    table = read_table(name)
    return [dict(config) for config in table.configs], np.nan_to_num(table.metrics["accuracy"].astype(float))


def of_task(name: str, count: int, rng: np.random.Generator) -> Sample:
    """Draw ``count`` of a recorded task's configurations, each with the curve of one of its seeds."""
    configs, accuracy = task_of(name)
    order = rng.permutation(len(configs))[:count]
    curves = accuracy[order, rng.integers(0, accuracy.shape[1], len(order))]
    drawn = [{**configs[number], **{dead: float(rng.uniform(0, 1)) for dead in DEAD}} for number in order]
    return Sample(drawn, np.maximum.accumulate(curves, axis=1), name)


@functools.cache
def truth_of(name: str, epoch: int) -> dict[str, float]:
    """Return fANOVA's importances of all of a task's configurations at an epoch."""
    configs, accuracy = task_of(name)
    best = np.maximum.accumulate(accuracy.mean(axis=1), axis=1)[:, epoch - 1]
    return {**importances(configs, best, "fanova"), **dict.fromkeys(DEAD, 0.0)}


def asha(best: Values) -> Values:
    """Return how many epochs each trial trains where a third of those at a rung goes on, one trial after another."""
    seen: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    reached = []
    for row in best:
        for rung in RUNGS:
            seen[rung].append(row[rung - 1])
            if rung == RUNGS[-1] or row[rung - 1] < np.quantile(seen[rung], 1 - 1 / FACTOR):
                break
        reached.append(rung)
    return np.array(reached)


def compared(best: Values, reached: Values, *, any_epoch: bool) -> tuple[Values, Values, int]:
    """Return which trials are compared, their values, and the epoch whose truth is asked for."""
    if any_epoch:
        return np.arange(len(best)), best[np.arange(len(best)), reached - 1], RUNGS[-1]
    epoch = int(np.sort(reached)[::-1][math.ceil(MOST * len(reached)) - 1])
    there = np.flatnonzero(reached >= epoch)
    return there, best[there, epoch - 1], epoch


def importances(configs: Sequence[Mapping[str, Any]], values: Values, evaluator: str) -> dict[str, float]:
    """Return importances that sum up to 1."""
    keys = list(configs[0])
    columns = [
        Column(key, tuple(one[key] for one in configs), all(isinstance(one[key], int | float) for one in configs))
        for key in keys
    ]
    found = evaluate(columns, np.asarray(values, dtype=float), "max", evaluator)
    whole = sum(found.values()) or 1.0
    return {key: found.get(key, 0.0) / whole for key in keys}


def row(task: str, count: int, repetitions: int, evaluator: str, *, any_epoch: bool) -> str:
    """Measure one evaluator, and return a row of the table."""
    off, first, dead, took, there = [], [], [], [], 0
    for seed in range(repetitions):
        rng = np.random.default_rng([seed, count])
        sample = synthetic(count, rng) if task == "synthetic" else of_task(task, count, rng)
        members, values, epoch = compared(sample.best, asha(sample.best), any_epoch=any_epoch)
        truth, there = sample.truth(epoch), len(members)
        began = time.perf_counter()
        found = importances([sample.configs[at] for at in members], values, evaluator)
        took.append(time.perf_counter() - began)
        off.append(sum(abs(found.get(key, 0.0) - share) for key, share in truth.items()) / 2)
        first.append(truth[max(found, key=found.__getitem__)] >= NEARLY * max(truth.values()))
        dead.append(sum(found[key] for key in DEAD))
    which = "any" if any_epoch else "the same"
    if evaluator == EVALUATORS[0] and not any_epoch and count in (70, 200):
        of = f"n = {repetitions}, the most important key found in {100 * np.mean(first):.0f} %"
        what = f"{task}, {count} trials: distance of fANOVA's importances from the truth"
        headline(what, float(np.mean(off)), "", of=of)
    return (
        f"{task:<13}{count:>6} {which:>9}{there:>6}  {evaluator:<9}{np.mean(off):>5.2f}{np.mean(first):>7.0%}"
        f"{np.mean(dead):>7.2f}{max(dead):>6.2f}{np.median(took):>8.2f} s"
    )


SMALL = 0.05
"""What a key without effect is to stay below."""


def without_effect(task: Any, searcher: str, seed: int) -> tuple[float, int]:
    """Train a sweep; return the importance of the task's key without effect, as the figure has it, and its epoch."""
    from live_curves import LiveCurves, space_of  # needs torch, as no other part here does

    space, curves = space_of(task), LiveCurves(task, seed)
    chosen: Any = RandomSearcher(space, seed, "loss", "min")
    if searcher == "auto":
        chosen = tl.AutoSearcher(space=space, metric="loss", mode="min", seed=seed)
    sweep = simulate(curves, "asha", searcher=chosen, num_samples=100, cluster="1x8", seed=seed)
    trials = [SimpleNamespace(plain_config=trial.config, history=_history(curves, trial)) for trial in sweep.trials]
    epoch, values = same_epoch(SimpleNamespace(trials=trials), "loss", "min")
    there = np.isfinite(values)
    known: Any = [trial for trial, one in zip(trials, there, strict=True) if one]
    found, _ = importances_of(columns(known), values[there], "min", "fanova")
    return sum(one.value for one in found if one.key in task.without_effect), epoch


def _history(curves: Any, trial: Any) -> list[dict[str, float]]:
    curve = curves.curve(trial.config)
    return [{"epoch": epoch, **curve.at(epoch + 1)} for epoch in range(trial.reports)]


def print_trained(half: str, seeds: int) -> None:
    """Print how often a key without effect is found as such, for the tasks of a half."""
    import torch
    from curve_tasks import TASKS

    torch.set_num_threads(1)
    print(f"{'task':<22}{'searcher':<10}{'sweeps':>6}{f'below {SMALL}':>12}{'mean':>7}{'worst':>7}{'epochs':>8}")
    for task in TASKS.values():
        if task.half != half:
            continue
        if task.name == "mnist1d-cnn" and importlib.util.find_spec("mnist1d") is None:
            print(f"{task.name}: left out, for mnist1d is not installed.")
            continue
        for searcher in ("random", "auto"):
            given, epochs = zip(*(without_effect(task, searcher, seed) for seed in range(seeds)), strict=True)
            share = np.mean([one < SMALL for one in given])
            at = ", ".join(map(str, sorted(set(epochs))))
            print(
                f"{task.name:<22}{searcher:<10}{seeds:>6}{share:>12.0%}{np.mean(given):>7.3f}{max(given):>7.2f}{at:>8}",
                flush=True,
            )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few repetitions of few trials, for CI")
    parser.add_argument(
        "--trained", choices=["design", "final"], help="sweeps that are trained, of a half of the tasks"
    )
    parser.add_argument("--seeds", type=int, default=20, help="sweeps of each task and searcher that is trained")
    args = parser.parse_args()
    short = args.short
    if args.trained:
        print_trained(args.trained, args.seeds)
        return 0
    plan = {20: 2, 70: 2} if short else {20: 20, 70: 20, 200: 12, 1000: 4}
    print(f"{'task':<13}{'trials':>6} {'epoch':>9}{'of':>6}  {'':<9}{'off':>5}{'first':>7}{'no effect':>13}{'time':>8}")
    for task in ("synthetic", "digits", "digits-noisy"):
        for count, repetitions in plan.items():
            if task != "synthetic" and count > len(task_of(task)[0]):
                continue
            for any_epoch in (True, False):
                for evaluator in EVALUATORS:
                    print(row(task, count, repetitions, evaluator, any_epoch=any_epoch), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
