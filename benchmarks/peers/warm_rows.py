"""Sweeps that learn from earlier ones, for benchmarks/search.py: from good ones, from foreign ones and from a lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from curve_tasks import TASKS, Task
from live_curves import LiveCurves, space_of
from search_rows import Played, Row, simulated
from surrogate_tasks import SURROGATES

import tunelight as tl
from tunelight.searchers import OptunaSearcher
from tunelight.searchers.earlier import Earlier

TRIALS = 40
"""Of each earlier sweep, under ASHA with random search."""


@functools.lru_cache(100)
def earlier_sweep(task: Task, seed: int, sign: int = 1) -> list[Earlier]:
    """Return the trials of an earlier sweep of a task; ``sign`` -1: with best and worst exchanged."""
    from tunelight.searchers import RandomSearcher

    searcher, curves = RandomSearcher(space_of(task.name), seed, "loss", "min"), LiveCurves(task, seed)
    sweep = tl.simulate(curves, "asha", searcher=searcher, num_samples=TRIALS, cluster="1x8", seed=seed)
    return [
        Earlier(
            f"{task.name}-{seed}-{sign}",
            trial.id,
            "FINISHED" if trial.reports == task.epochs else "STOPPED",
            trial.config,
            [sign * trial.best],
            {n: sign * curves.curve(trial.config).at(n)["loss"] for n in range(1, trial.reports + 1)},
        )
        for trial in sweep.trials
        if trial.best is not None
    ]


def same(task: Task, seed: int) -> list[Earlier]:
    """Return two earlier sweeps of the same task."""
    return earlier_sweep(task, seed + 1000) + earlier_sweep(task, seed + 2000)


def others(task: Task, seed: int) -> list[Earlier]:
    """Return a sweep of each other task of the same half: what their keys have in common is mostly the names."""
    names = [name for name, other in TASKS.items() if other.half == task.half and name != task.name]
    every: Mapping[str, Any] = TASKS if isinstance(task, Task) else SURROGATES
    return [trial for name in names for trial in earlier_sweep(every[name], seed + 1000)]


def misleading(task: Task, seed: int) -> list[Earlier]:
    """Return two earlier sweeps in which the worst configurations come first."""
    return earlier_sweep(task, seed + 1000, -1) + earlier_sweep(task, seed + 2000, -1)


def mixed(task: Task, seed: int) -> list[Earlier]:
    """Return the misleading ones, those of other tasks, and one of the same task."""
    return misleading(task, seed) + others(task, seed) + earlier_sweep(task, seed + 3000)


def warm(kind: str, known: Any) -> Row:
    """Return a row of ASHA with a searcher that has learned from earlier sweeps."""

    def play(task: Task, seed: int, slots: int, hours: float) -> Played:
        def searcher(space: Any, number: int) -> Any:
            given: dict[str, Any] = {"space": space, "metric": "loss", "mode": "min", "seed": number}
            made = tl.AutoSearcher(**given) if kind == "auto" else OptunaSearcher(kind, **given)
            trials: Sequence[Earlier] = known(task, seed)
            made.learn(trials)
            return made

        return simulated(searcher, "asha")(task, seed, slots, hours)

    return play


WARM: dict[str, Row] = {
    f"{kind}, {what}": warm(kind, known)
    for kind in ("auto", "tpe", "gp")
    for what, known in (("same task", same), ("other tasks", others), ("misleading", misleading), ("mixed", mixed))
}
