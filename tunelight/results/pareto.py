"""The Pareto front: trials that no other beats in every metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tunelight.record import metric_value
from tunelight.settings import Mode


class HasReport(Protocol):
    """A trial, as far as it counts for the front."""

    @property
    def failed(self) -> bool:
        """Whether it failed; failed trials are left out."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Its best report."""


Trial = TypeVar("Trial", bound=HasReport)


def front(points: Sequence[Sequence[float]], modes: Sequence[Mode]) -> list[int]:
    """Return the indices of the points that no other point dominates; equal points do not dominate each other.

    A point dominates another if it is as good in every coordinate and better in one. ``modes``: of each coordinate.
    """
    values = np.array(points, dtype=float).reshape(len(points), len(modes))
    values *= [-1.0 if mode == "max" else 1.0 for mode in modes]
    beaten = [bool(np.any(np.all(values <= one, axis=1) & np.any(values < one, axis=1))) for one in values]
    return [index for index, lost in enumerate(beaten) if not lost]


def on_front(trials: Iterable[Trial], objectives: Sequence[tuple[str, Mode]]) -> list[Trial]:
    """Return the trials that no other beats in every metric, by their best reports; order is kept.

    Left out are trials that failed, and those whose report lacks a metric or holds it as NaN or infinity.
    """
    values: list[list[float]] = []
    found = []
    for trial in trials:
        numbers = [metric_value(trial.metrics, metric) for metric, _ in objectives]
        finite = [float(number) for number in numbers if number is not None and np.isfinite(number)]
        if not trial.failed and len(finite) == len(objectives):
            values.append(finite)
            found.append(trial)
    return [found[index] for index in front(values, [mode for _, mode in objectives])] if found else []
