"""Sweeps that learn from earlier ones, for benchmarks/search.py: from good ones, and from a lie."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from curve_tasks import Task
from live_curves import LiveCurves, space_of
from search_rows import Played, Row, simulated

from tests.world import simulate
from tunelight.extras.earlier import Earlier
from tunelight.extras.optuna import OptunaSearcher
from tunelight.searchers import RandomSearcher

TRIALS = 40
"""Of each earlier sweep, under ASHA with random search on 8 slots."""


@functools.lru_cache(100)
def earlier_sweep(task: Task, seed: int, sign: int = 1) -> list[Earlier]:
    """Return the trials of an earlier sweep of a task; ``sign``: -1 with best and worst exchanged."""
    curves = LiveCurves(task, seed)
    searcher = RandomSearcher(space_of(task), seed, "loss", "min")
    sweep = simulate(curves, "asha", searcher=searcher, num_samples=TRIALS, seed=seed)
    found = []
    for trial in sweep.trials:
        curve = {n: sign * float(curves.curve(trial.config).at(n)["loss"]) for n in range(1, trial.reports + 1)}
        told = {n: loss for n, loss in curve.items() if math.isfinite(loss)}
        if told:
            state = "FINISHED" if trial.reports == task.epochs else "STOPPED"
            best = [min(told.values())]
            found.append(Earlier(f"{task.name}-{seed}-{sign}", trial.trial_id, state, trial.config, best, told))
    return found


def same(task: Task, seed: int) -> list[Earlier]:
    """Return two earlier sweeps of the same task."""
    return earlier_sweep(task, seed + 1000) + earlier_sweep(task, seed + 2000)


def misleading(task: Task, seed: int) -> list[Earlier]:
    """Return two earlier sweeps in which the worst configurations come first."""
    return earlier_sweep(task, seed + 1000, -1) + earlier_sweep(task, seed + 2000, -1)


def warm(kind: str, known: Callable[[Task, int], Sequence[Earlier]]) -> Row:
    """Return a row of ASHA with a searcher that has learned from earlier sweeps."""

    def play(task: Task, seed: int, slots: int, hours: float) -> Played:
        def searcher(space: Any, number: int) -> Any:
            made = OptunaSearcher(kind, space=space, metric="loss", mode="min", seed=number)
            made.learn(known(task, seed))
            return made

        return simulated(searcher, "asha")(task, seed, slots, hours)

    return play


WARM: dict[str, Row] = {
    f"{kind}, {what}": warm(kind, known)
    for kind in ("tpe", "gp")
    for what, known in (("same task", same), ("misleading", misleading))
}
