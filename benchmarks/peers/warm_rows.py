"""Sweeps that learn from earlier ones, for benchmarks/search.py: from good ones, from foreign ones and from a lie."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from curve_data import Rows
from curve_tasks import TASKS, Task
from live_curves import EPOCH_S, LiveCurves, space_of
from search_rows import Played, Row, simulated

import tunelight as tl
from tests.world import simulate
from tunelight.searchers import OptunaSearcher, RandomSearcher
from tunelight.searchers.earlier import Earlier

TRIALS = 40
"""Of each earlier sweep, under ASHA with random search, but for those of VARIANTS."""


@functools.lru_cache(100)
def earlier_sweep(
    task: Task, seed: int, sign: int = 1, *, metric: str = "loss", slots: int = 8, hours: float | None = None
) -> list[Earlier]:
    """Return the trials of an earlier sweep of a task, judged by their losses.

    Args:
        sign: -1: with best and worst exchanged.
        metric: what that sweep went by.
        hours: of all its workers (None: it ends with its trials).
    """
    curves = LiveCurves(task, seed, metric, "max" if metric == "accuracy" else "min")
    count = TRIALS if hours is None else int(hours * 3600 / EPOCH_S)
    budget = None if hours is None else hours / slots * 3600
    searcher = RandomSearcher(space_of(task), seed, curves.metric, curves.mode)
    sweep = simulate(
        curves,
        "asha",
        searcher=searcher,
        num_samples=count,
        cluster=f"1x{slots}",
        seed=seed,
        time_budget=budget,
    )
    found = []
    for trial in sweep.trials:
        curve = {n: float(curves.curve(trial.config).at(n)["loss"]) for n in range(1, trial.reports + 1)}
        losses = [sign * loss for loss in curve.values() if math.isfinite(loss)]
        if losses:
            state = "FINISHED" if trial.reports == task.epochs else "STOPPED"
            told = {n: sign * loss for n, loss in curve.items() if math.isfinite(loss)}
            found.append(Earlier(f"{task.name}-{seed}-{sign}", trial.id, state, trial.config, [min(losses)], told))
    return found


def same(task: Task, seed: int) -> list[Earlier]:
    """Return two earlier sweeps of the same task."""
    return earlier_sweep(task, seed + 1000) + earlier_sweep(task, seed + 2000)


def others(task: Task, seed: int) -> list[Earlier]:
    """Return a sweep of each other task of the same half: what their keys have in common is mostly the names."""
    names = [name for name, other in TASKS.items() if other.half == task.half and name != task.name]
    return [trial for name in names for trial in earlier_sweep(_tasks(task)[name], seed + 1000)]


def _tasks(task: Task) -> Mapping[str, Any]:
    if isinstance(task, Task):
        return TASKS
    from surrogate_tasks import SURROGATES  # needs scikit-learn

    return SURROGATES


def misleading(task: Task, seed: int) -> list[Earlier]:
    """Return two earlier sweeps in which the worst configurations come first."""
    return earlier_sweep(task, seed + 1000, -1) + earlier_sweep(task, seed + 2000, -1)


def mixed(task: Task, seed: int) -> list[Earlier]:
    """Return the misleading ones, those of other tasks, and one of the same task."""
    return misleading(task, seed) + others(task, seed) + earlier_sweep(task, seed + 3000)


def _made(kind: str, space: Any, seed: int) -> Any:
    given: dict[str, Any] = {"space": space, "metric": "loss", "mode": "min", "seed": seed}
    return tl.AutoSearcher(**given) if kind == "auto" else OptunaSearcher(kind, **given)


def warm(kind: str, known: Callable[[Task, int], Sequence[Earlier]]) -> Row:
    """Return a row of ASHA with a searcher that has learned from earlier sweeps."""

    def play(task: Task, seed: int, slots: int, hours: float) -> Played:
        def searcher(space: Any, number: int) -> Any:
            made = _made(kind, space, number)
            made.learn(known(task, seed))
            return made

        return simulated(searcher, "asha")(task, seed, slots, hours)

    return play


# --- the project goes on ----------------------------------------------------------------------------------


def _other_rows(task: Task) -> Task:
    def swapped() -> Rows:
        rows = task.data()
        return Rows(rows.val_x, rows.val_y, rows.x, rows.y)

    return replace(task, data=swapped)


def _half_as_wide(task: Task) -> Task:
    return replace(task, model=lambda config, rng: task.model({**config, "width": max(1, config["width"] // 2)}, rng))


def _smaller_space(task: Task, seed: int) -> Task:
    """Return a task of which half of each range was searched, on its own scale, and not each value of each choice."""
    rng = np.random.RandomState(seed)

    def part(kind: str, given: Sequence[Any]) -> Sequence[Any]:
        if kind == "choice":
            kept = rng.permutation(len(given))[: max(1, math.ceil(len(given) / 2))]
            return [given[place] for place in sorted(kept)]
        log, whole = "log" in kind, "int" in kind
        low, high = (math.log(value) if log else value for value in given)
        start = low + rng.uniform(0, 0.5) * (high - low)
        ends = [math.exp(value) if log else value for value in (start, start + (high - low) / 2)]
        return [int(ends[0]), max(int(ends[0]) + 1, math.ceil(ends[1]))] if whole else ends

    return replace(
        task, space={key: {kind: part(kind, given)} for key, one in task.space.items() for kind, given in one.items()}
    )


def _first(what: str, task: Task, seed: int, slots: int, hours: float) -> list[Earlier]:
    """Return the sweep that came before this one of a task, as long as this one."""
    then: Task = {
        "new data": lambda: _other_rows(task),
        "double width": lambda: _half_as_wide(task),
        "wider space": lambda: _smaller_space(task, seed),
        "other metric": lambda: task,
    }[what]()
    metric = {"labels": "accuracy", "squares": "deviation"}[task.loss] if what == "other metric" else "loss"
    return earlier_sweep(then, seed + 1000, metric=metric, slots=slots, hours=hours)


def after(what: str, kind: str) -> Row:
    """Return a row of ASHA with a searcher that has learned from a sweep of the same length."""

    def play(task: Task, seed: int, slots: int, hours: float) -> Played:
        def searcher(space: Any, number: int) -> Any:
            made = _made(kind, space, number)
            made.learn(_first(what, task, seed, slots, hours))
            return made

        return simulated(searcher, "asha")(task, seed, slots, hours)

    return play


WARM: dict[str, Row] = {
    f"{kind}, {what}": warm(kind, known)
    for kind in ("auto", "tpe", "gp")
    for what, known in (("same task", same), ("other tasks", others), ("misleading", misleading), ("mixed", mixed))
}
VARIANTS: dict[str, Row] = {
    f"{kind}, {what}": after(what, kind)
    for kind in ("auto", "tpe")
    for what in ("new data", "double width", "wider space", "other metric")
}
"""The first sweep had other data, half the width, a smaller space, or went by another metric."""
