"""Repetitions: which trained configurations a sweep's search trains again, and what it needs to know for that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunelight.compat.ray import TRAINING_ITERATION
from tunelight.record import Standing, Training, metric_value, plan, standings
from tunelight.record.repeated import chosen, length
from tunelight.settings.repeats import Repeats

Past = Sequence[tuple[Training, Mapping[str, Any]]]
"""Trainings of earlier runs of the sweep, with their configurations."""


class Repetitions:
    """Follows the trials of a sweep, and says which to train again once all of the search have ended.

    Args:
        repeats: how often, and how many.
        metric, mode: what trials are judged by.
        past: the trials of earlier runs; those that go on are among them.
    """

    def __init__(self, repeats: Repeats, metric: str, mode: str, past: Past = ()) -> None:
        self._repeats, self._metric, self._mode = repeats, metric, mode
        self._trainings = {one.id: replace(one) for one, _ in past}
        self._configs = {one.id: dict(config) for one, config in past}
        self._plan: list[tuple[str, int]] | None = None
        self._length: float | None = None

    def begin(self, trial_id: str, config: Mapping[str, Any], repeats: str | None = None, repetition: int = 0) -> None:
        """Take a new trial, or one of an earlier run that goes on."""
        known = self._trainings.get(trial_id)
        if known is None:
            index = max((one.index for one in self._trainings.values()), default=-1) + 1
            self._trainings[trial_id] = Training(trial_id, index, repeats, repetition)
            self._configs[trial_id] = dict(config)
        else:
            known.state = ""
        self._plan = self._length = None

    def report(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Take a report."""
        known = self._trainings[trial_id]
        known.reports = max(known.reports, int(result.get(TRAINING_ITERATION) or 0))
        value = metric_value(result, self._metric)
        if value is not None and math.isfinite(value):
            best = max if self._mode == "max" else min
            known.value = value if known.value is None else best(known.value, value)

    def end(self, trial_id: str, state: str, result: Mapping[str, Any]) -> None:
        """Take a trial's end, as the record has it, with its last report."""
        self.report(trial_id, result)
        self._trainings[trial_id].state = state
        self._plan = self._length = None

    def next(self) -> tuple[str, int] | None:
        """Return the trial to train again now, and which training of its configuration that is; None if there is none.

        Only for when all trials of the search have ended.
        """
        if self._plan is None:
            self._plan = plan(self._ordered, self._repeats, self._mode)
        return next(iter(self._plan), None)

    def standings(self) -> list[Standing]:
        """Return the configurations that were trained again, the best mean first."""
        return standings(self._ordered, self._repeats, self._mode)

    @property
    def _ordered(self) -> list[Training]:
        return sorted(self._trainings.values(), key=lambda one: one.index)

    def config(self, trial_id: str) -> dict[str, Any]:
        """Return a trial's configuration."""
        return dict(self._configs[trial_id])

    def of(self, trial_id: str) -> tuple[str, int] | None:
        """Return which trial a trial trains again, and which training that is; None for a trial of the search."""
        known = self._trainings.get(trial_id)
        return None if known is None or known.repeats is None else (known.repeats, known.repetition)

    def searching(self, live: Iterable[str]) -> bool:
        """Tell whether a trial of the search is among those that live."""
        return any(self.of(trial_id) is None for trial_id in live)

    def ends_at(self, trial_id: str) -> float | None:
        """Return the report at which a repetition is to be stopped; None for a trial of the search.

        Infinite where those that came furthest ended by themselves: repetitions do so too. None also where the trial
        that it repeats is not of this sweep, which then reproduces a training.
        """
        known = self._trainings.get(trial_id)
        if known is None or known.repeats in (None, trial_id) or known.repeats not in self._trainings:
            return None
        if self._length is None:
            self._length = length(chosen(self._ordered, self._repeats.top, self._mode))
        return self._length
