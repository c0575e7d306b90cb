"""Curves that are trained when they are asked for, for simulated sweeps whose searchers choose freely.

A table of recorded curves can only answer with the nearest configuration that it holds, which says nothing of a
searcher: among the best quarter of our recorded configurations, the nearest one's result hardly correlates with a
configuration's own. So the tasks are trained for real, epoch by epoch, on virtual time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from curve_tasks import Task

EPOCH_S = 60.0
"""What an epoch takes on virtual time, on one worker, whatever the configuration."""
FRESH = 3
"""Trainings by other seeds that the truth of a configuration is the mean of."""
WORST = 6e4


class LiveCurve:
    """The reports of one training, which goes on as far as they are asked for."""

    def __init__(self, task: Task, config: Mapping[str, Any], seed: int) -> None:
        self.epochs = task.epochs
        self.seconds = EPOCH_S
        self._training = task.start(dict(config), seed)
        self._reports: list[dict[str, float]] = []

    @property
    def metrics(self) -> Mapping[str, Sequence[float]]:
        """What was reported so far, at least once."""
        return {name: [report[name] for report in self._reports] for name in self.at(1)}

    def at(self, number: int) -> dict[str, float]:
        """Return report ``number`` (from 1)."""
        while len(self._reports) < min(number, self.epochs):
            self._reports.append(self._training.epoch())
        return self._reports[min(number, self.epochs) - 1]

    def best(self, reports: int | None = None) -> float:
        """Train to the end, or for so many reports, and return the best loss of them."""
        losses = [self.at(number)["loss"] for number in range(1, (reports or self.epochs) + 1)]
        return min([WORST, *(loss for loss in losses if math.isfinite(loss))])


class LiveCurves:
    """A task's curves, for ``simulate``; each configuration is trained from a seed of its own and the sweep's."""

    size = 10**9
    metric = "loss"
    mode: Literal["min", "max"] = "min"

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self.epochs = task.epochs
        self._seed = seed
        self._made: dict[str, LiveCurve] = {}

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration that random search begins with."""
        found: dict[str, Any] = space_of(self.task).sample(np.random.RandomState(number))
        return found

    def curve(self, config: Mapping[str, Any]) -> Any:
        """Return the training of a configuration."""
        key = _key(config)
        if key not in self._made:
            self._made[key] = LiveCurve(self.task, config, _number(f"{self._seed} {key}"))
        return self._made[key]


@functools.cache
def space_of(task: Task) -> Any:
    """Return a task's search space."""
    import tunelight as tl

    return tl.SearchSpace(dict(task.space))


def truth(task: Task, config: Mapping[str, Any], cache: Path) -> float:
    """Return the mean of a configuration's best losses over seeds that no sweep trains with; kept in a folder."""
    kept = cache / task.name / hashlib.sha256(_key(config).encode()).hexdigest()[:24]
    if kept.exists():
        return float(kept.read_text())
    found = float(np.mean([LiveCurve(task, config, 10**9 + seed).best() for seed in range(FRESH)]))
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = kept.with_suffix(f".{_number(str(found))}")
    draft.write_text(repr(found))
    draft.replace(kept)
    return found


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=float)


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
