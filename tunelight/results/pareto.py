"""Trials that no other beats in every metric: what a sweep with several metrics finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tunelight.errors import SettingsError, unknown
from tunelight.record import metric_value
from tunelight.settings import Mode, paired


class Judged(Protocol):
    """What of a trial counts for the front."""

    @property
    def failed(self) -> bool:
        """Tell whether it failed: such a trial is left out."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Its best report."""


Trial = TypeVar("Trial", bound=Judged)


def front(points: Sequence[Sequence[float]], modes: Sequence[Mode]) -> list[int]:
    """Return which points no other dominates, by their places; of equal points all are there.

    One dominates another if it is as good in every coordinate, and better in one.
    """
    values = np.array(points, dtype=float).reshape(len(points), len(modes))
    values *= [-1.0 if mode == "max" else 1.0 for mode in modes]
    beaten = [bool(np.any(np.all(values <= one, axis=1) & np.any(values < one, axis=1))) for one in values]
    return [place for place, lost in enumerate(beaten) if not lost]


class Fronted(Generic[Trial]):
    """The part of a sweep's results that knows of several metrics."""

    trials: list[Trial]
    _told: Mapping[str, Any]

    @property
    def objectives(self) -> tuple[tuple[str, Mode], ...]:
        """What was searched for, (metric, mode) each; ``best`` goes by the first."""
        return paired(self._told.get("metric"), self._told.get("mode"))

    def pareto(self, *metrics: str) -> list[Trial]:
        """Return the trials that no other beats in every metric, in order of creation.

        A trial counts with its best report (by the sweep's first metric), if that holds all metrics as finite numbers
        and the trial did not fail.

        Args:
            metrics: some of the sweep's (all of them).

        Raises: SettingsError for a metric that is none of the sweep's.
        """
        known = dict(self.objectives)
        for metric in metrics:
            if metric not in known:
                raise SettingsError(unknown("This sweep is not judged by", metric, known, listed="It is by"))
        wanted = metrics or tuple(known)
        points = [
            (trial, [metric_value(trial.metrics, metric) for metric in wanted])
            for trial in self.trials
            if not trial.failed
        ]
        whole = [
            (trial, [float(value) for value in values if value is not None and np.isfinite(value)])
            for trial, values in points
        ]
        found = [(trial, values) for trial, values in whole if len(values) == len(wanted)]
        if not found:
            return []
        return [found[place][0] for place in front([values for _, values in found], [known[one] for one in wanted])]
