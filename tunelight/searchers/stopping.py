"""Stopping: whether a search should end, because a better result has become improbable.

The best of the values that trials have reported are taken for exceedances of a threshold, which follow a generalized
Pareto distribution (Coles, "An Introduction to Statistical Modeling of Extreme Values", 2001, chapter 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tunelight.record import FAILED, INFEASIBLE, PAUSED, Training, metric_value
from tunelight.settings import Settings

LEAST: Final = 20
"""Trials that must have reported, and ended or paused, before anything is estimated."""
IMPROBABLE: Final = 0.1
"""The chance below which no further trial is begun."""
_GROWTH: Final = 1.05
"""How many times as many trials there must be from one estimate to the next."""
_SHARE: Final = 0.1
"""The share of the trials, the best ones, that the distribution is fitted to."""
_CLEARLY: Final = 2.0
"""Standard deviations."""
_FEWEST, _MOST = 5, 50
"""Of the trials that it is fitted to."""
_SHAPES: Final = np.linspace(-1.0, 0.5, 16)
_SCALES: Final = np.exp(np.linspace(-2.0, 2.0, 81))
"""The distributions that are weighed by their likelihood; scales are multiples of the mean exceedance."""


def chance(losses: Iterable[float], margin: float, further: int) -> float:
    """Return the probability that the best of ``further`` trials is better than the best of ``losses`` by a margin.

    Further trials are taken for draws from the distribution of the earlier ones. Where the later half of these is
    clearly better than the first, as a searcher that learns may have it, that half is also taken alone, and the higher
    probability counts.

    Args:
        losses: the best value of each trial so far, in order, less being better; infinite where it found nothing.
        margin: how much better, in the same unit; 0 or more.
        further: how many trials.
    """
    values = np.fromiter(losses, float)
    wanted = values.min() - margin
    found = _chance(values, wanted, further)
    return max(found, _chance(values[len(values) // 2 :], wanted, further)) if _improves(values) else found


def _improves(values: np.ndarray) -> bool:
    """Tell whether the later half is clearly better than the first, by Wilcoxon's rank sum."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    n, first = len(values), len(values) // 2
    expected, deviation = (n - first) * (n + 1) / 2, math.sqrt(first * (n - first) * (n + 1) / 12)
    return bool(ranks[first:].sum() < expected - _CLEARLY * deviation)


def _chance(values: np.ndarray, wanted: float, further: int) -> float:
    """Return the probability that the best of ``further`` draws from the distribution of values is below ``wanted``.

    That it is better than the best value at all follows from their numbers alone, whatever the distribution; how much
    better it then is, from the best tenth.
    """
    any_better = further / (len(values) + further)
    ordered = np.sort(values)
    finite = ordered[np.isfinite(ordered)]
    count = min(max(_FEWEST, math.ceil(_SHARE * len(ordered))), _MOST, len(finite) - 1)
    if count < 1:
        return any_better
    exceedances = finite[count] - finite[:count]
    exceedances = exceedances[exceedances > 0]
    if not len(exceedances):
        return 0.0  # the best are all equal, so that nothing better is expected
    unit = exceedances.mean()
    shapes, scales = (grid.ravel() for grid in np.meshgrid(_SHAPES, _SCALES))
    likelihood = _log_survival(exceedances / unit, shapes, scales, density=True).sum(0)
    weights = np.exp(likelihood - likelihood.max())
    beyond = np.exp(_log_survival((finite[count] - np.array([finite[0], wanted])) / unit, shapes, scales)) @ weights
    return float(any_better * beyond[1] / beyond[0])


def _log_survival(at: np.ndarray, shapes: np.ndarray, scales: np.ndarray, *, density: bool = False) -> np.ndarray:
    """Return the logarithm of the probability of more than ``at``, or of the density there: [at, distributions]."""
    z = at[:, None] / scales
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.log1p(np.maximum(shapes * z, -1.0))  # minus infinity at and beyond the end of the distribution
        survival: np.ndarray = -np.where(np.abs(shapes) < 1e-9, z, growth / shapes)
        if not density:
            return survival
        inside: np.ndarray = np.where(np.isfinite(growth), survival - growth, -np.inf) - np.log(scales)
        return inside


class Stopping:
    """Follows the trials of a search, and says when a result that is better by ``margin`` has become improbable.

    That is so when the chance that as many trials as were made, or as are left to make, find one is below a tenth. It
    is estimated when a trial has ended or paused, once there are 20, and then with every twentieth part more. It
    depends on what was reported alone, and in no way on time or chance.

    Args:
        margin: how much better, in the metric's own unit; 0 or more.
        metric, mode: what trials are judged by.
        past: the trainings of earlier runs; repetitions among them do not count.
        reason: why the search had ended in an earlier run; None if it had not.
    """

    def __init__(
        self, margin: float, metric: str, mode: str, past: Iterable[Training] = (), reason: str | None = None
    ) -> None:
        self.reason = reason
        """Why no further trial is begun, in words; None while trials are."""
        self.say: Callable[[str], None] = lambda _: None
        """Called with the reason when there is one."""
        self._margin, self._metric, self._mode = margin, metric, mode
        self._trainings = {one.id: replace(one) for one in past if one.repeats is None}
        self._reported = {one.id for one in self._trainings.values() if one.reports}
        self._next = LEAST
        paused = [one.id for one in self._trainings.values() if one.state == PAUSED]
        while self._next <= len(self._settled(paused)):
            self._next = _following(self._next)

    @classmethod
    def of(cls, settings: Settings, past: Iterable[Training] = (), reason: str | None = None) -> Stopping | None:
        """Return what ``stop_when`` of a sweep's settings asks for; None if it is not given."""
        return None if settings.margin is None else cls(settings.margin, **settings.judged_by, past=past, reason=reason)

    def begin(self, trial_id: str) -> None:
        """Take a new trial of the search."""
        self._trainings[trial_id] = Training(trial_id, len(self._trainings))

    def report(self, trial_id: str, result: Mapping[str, object]) -> None:
        """Take a report."""
        known = self._trainings[trial_id]
        value = metric_value(result, self._metric)
        if value is not None and math.isfinite(value):
            best = max if self._mode == "max" else min
            known.value = value if known.value is None else best(known.value, value)
        self._reported.add(trial_id)

    def end(self, trial_id: str, state: str) -> None:
        """Take the end of a trial, as the record has it."""
        self._trainings[trial_id].state = state
        self._reported.add(trial_id)

    def consider(self, paused: Callable[[], Collection[str]], left: int, *, now: bool = False) -> None:
        """Estimate the chance if it is time, and set ``reason`` if it is too small.

        ``paused``: returns the trials that wait; ``left``: how many may still be made; ``now``: it is time.
        """
        if self.reason is not None or left < 1 or len(self._reported) < (LEAST if now else self._next):
            return
        settled = len(self._settled(paused()))
        if settled < (LEAST if now else self._next):
            return
        while self._next <= settled:
            self._next = _following(self._next)
        made = len(self._trainings)
        further = min(made, left)
        losses = [loss for one in self._trainings.values() if (loss := self._loss(one)) is not None]
        if (found := chance(losses, self._margin, further)) < IMPROBABLE:
            self.reason = self._in_words(made, further, min(losses), found)
            self.say(self.reason)

    def _settled(self, paused: Collection[str]) -> list[str]:
        """Return the trials that have reported and do not run."""
        return [one for one in self._reported if not self._trainings[one].live or one in paused]

    def _loss(self, training: Training) -> float | None:
        """Return a trial's best value as a loss; None if it says nothing of its configuration."""
        if training.state in INFEASIBLE:
            return math.inf
        if training.state in FAILED or training.id not in self._reported:
            return None
        if training.value is None:
            return math.inf
        return -training.value if self._mode == "max" else training.value

    def _in_words(self, made: int, further: int, loss: float, found: float) -> str:
        best = f"{-loss if self._mode == 'max' else loss:.4g}"
        by = f" by {self._margin:g}" if self._margin else ""
        more = "1 more finds" if further == 1 else f"{further} more find"
        share = "less than 1 %" if found < 0.01 else f"{100 * found:.0f} %"
        return (
            f"stop_when: after {made} trials, the chance that {more} a value of {self._metric} better than {best}{by} "
            f"is {share}; no further trials are begun"
        )


def _following(count: int) -> int:
    return max(count + 1, math.ceil(count * _GROWTH))
