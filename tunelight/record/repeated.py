"""Configurations that are trained several times: which ones, and what their trainings say.

Everything here follows from the trainings alone, so that the sweep, its resumption and its results agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tunelight.record.outcomes import DIVERGED, FAILED, FINISHED, INTERRUPTED, TERMINAL
from tunelight.record.state import Best, SweepState, TrialState, is_better
from tunelight.settings.values import Repeats

_ROUNDS: Final = 50
"""Of the fit of folds' effects, which converges much faster."""


@dataclass(eq=False)
class Training:
    """One training of a configuration, as far as it matters here."""

    id: str
    index: int
    repeats: str | None = None
    """The trial whose configuration it trains again; None for a trial of the search."""
    repetition: int = 0
    state: str = ""
    reports: int = 0
    value: float | None = None
    """The best reported value; None without a finite one."""

    @classmethod
    def of(cls, trial: TrialState) -> Training:
        """Return a recorded trial's."""
        reports = int(trial.history[-1]["training_iteration"] or 0) if trial.history else 0
        return cls(trial.id, trial.index, trial.repeats, trial.repetition, trial.state, reports, trial.value)

    def whole(self, reports: float) -> bool:
        """Tell whether it came to its own end, or made so many reports."""
        return self.state == FINISHED or self.reports >= reports

    def counts(self, reports: float, loss: float) -> bool:
        """Tell whether it counts in a contest of trainings with so many reports: a shorter one only if it diverged."""
        return self.whole(reports) or math.isinf(loss)

    @property
    def live(self) -> bool:
        """Tell whether it may still report."""
        return self.state not in TERMINAL or self.state == INTERRUPTED

    def loss(self, mode: str) -> float | None:
        """Return its value as a loss; None if it failed, or has not ended, and says nothing of its configuration."""
        if self.live or (self.state in FAILED and self.state != DIVERGED):
            return None
        if self.state == DIVERGED or self.value is None:
            return math.inf
        return -self.value if mode == "max" else self.value


@dataclass(frozen=True)
class Standing:
    """A configuration that was trained again.

    Attributes:
        trial: the trial of the search that it comes from.
        trials: all its trainings that count; that trial is among them unless it was stopped early.
        values: the best value of each of them; infinitely bad where training diverged.
        failed: its repetitions that failed or were stopped, and do not count.
        mean: of the values; with folds, as if no fold were missing.
        spread: their standard deviation (n - 1); None of a single one.
    """

    trial: str
    trials: tuple[str, ...]
    values: tuple[float, ...]
    failed: tuple[str, ...]
    mean: float
    spread: float | None

    @property
    def n(self) -> int:
        """How many trainings count."""
        return len(self.values)

    @property
    def again(self) -> bool:
        """Whether a repetition is among them; if all failed, there is only the trial of the search."""
        return self.trials != (self.trial,)


def chosen(trainings: Iterable[Training], top: int, mode: str) -> list[Training]:
    """Return the trials of the search that came furthest, best first.

    Those that ended by themselves come first, by their best value; then the others, by how many reports they made.
    """
    found = []
    for one in trainings:
        if one.repeats is None and not one.live and one.state not in FAILED and one.value is not None:
            finished = one.state == FINISHED
            loss = -one.value if mode == "max" else one.value
            found.append(((not finished, 0 if finished else -one.reports, loss, one.index), one))
    return [one for _, one in sorted(found, key=lambda entry: entry[0])[:top]]


def length(first: Sequence[Training]) -> float:
    """Return how many reports make a training that counts, by the trials that came furthest.

    Infinite, if any of those ended by itself: then only trainings that do so count. Else as many as the longest made.
    """
    return math.inf if any(one.state == FINISHED for one in first) else max((one.reports for one in first), default=0)


def plan(trainings: Sequence[Training], repeats: Repeats, mode: str) -> list[tuple[str, int]]:
    """Return (trial, repetition) of each training that is still to begin, once all trials of the search have ended.

    The second training of each configuration comes first, then the third, ... The last ones replace trials of the
    search that were stopped too early to count.
    """
    first = chosen(trainings, repeats.top, mode)
    short = {one.id for one in first if not one.whole(length(first))}
    made = {(one.repeats, one.repetition) for one in trainings if one.repeats is not None}
    wanted = [
        (one.id, number)
        for number in range(1, repeats.repeats + 1)
        for one in first
        if number < repeats.repeats or one.id in short
    ]
    return [one for one in wanted if one not in made]


def standings(
    trainings: Sequence[Training],
    repeats: Repeats,
    mode: str,
) -> list[Standing]:
    """Return the configurations that were trained again, the best mean first.

    A trial of the search that was stopped before the others does not count. A configuration whose repetitions have all
    failed counts with its single value all the same, behind the others.

    Args:
        trainings: all of the sweep.
        repeats: how they were trained again. With folds, differences between folds count for no configuration.
        mode: whether less or more is better.
    """
    known = {one.id: one for one in trainings}
    by_trial: dict[str, list[Training]] = {}
    for one in sorted(trainings, key=lambda one: (one.repetition, one.index)):
        first = known.get(one.repeats or "")
        if first is not None and first.repeats is None and not one.live:
            by_trial.setdefault(first.id, [first]).append(one)
    reports = length([known[one.repeats] for one in trainings if one.repeats in known])  # also of those that still run
    losses: dict[str, dict[Training, float]] = {}
    for trial, made in by_trial.items():
        losses[trial] = {
            one: loss for one in made if (loss := one.loss(mode)) is not None and one.counts(reports, loss)
        }
    again = {trial: found for trial, found in losses.items() if any(one.repeats for one in found)}
    means = _means(again, repeats)
    sign = -1.0 if mode == "max" else 1.0
    standing = []
    for trial in losses:
        counting = again.get(trial) or {known[trial]: known[trial].loss(mode) or 0.0}
        mean = means.get(trial, statistics.fmean(counting.values()))
        standing.append(
            Standing(
                trial,
                tuple(one.id for one in counting),
                tuple(sign * loss for loss in counting.values()),
                tuple(one.id for one in by_trial[trial][1:] if one not in counting),
                sign * mean,
                statistics.stdev(counting.values()) if len(counting) > 1 and math.isfinite(mean) else None,
            )
        )
    return sorted(standing, key=lambda one: (not one.again, sign * one.mean, known[one.trial].index))


Losses = Mapping[str, Mapping[Training, float]]
"""Trial of the search -> training -> loss."""


def _means(losses: Losses, repeats: Repeats) -> dict[str, float]:
    """Return the mean of each configuration.

    With folds, those are of the additive model mean + effect of the fold, fitted by alternating least squares, since a
    configuration that missed a hard fold would seem better than it is. Where no training is missing, the means are the
    plain ones. Configurations that diverged have no part in it.
    """
    means = {trial: statistics.fmean(found.values()) for trial, found in losses.items()}
    if repeats.folds:
        table = {
            trial: {one.repetition % repeats.repeats: loss for one, loss in found.items()}
            for trial, found in losses.items()
            if math.isfinite(means[trial])
        }
        effects = dict.fromkeys(sorted({fold for found in table.values() for fold in found}), 0.0)
        for _ in range(_ROUNDS):
            for fold in effects:
                effects[fold] = statistics.fmean(
                    found[fold] - means[trial] for trial, found in table.items() if fold in found
                )
            centre = statistics.fmean(effects.values())
            effects = {fold: effect - centre for fold, effect in effects.items()}
            for trial, found in table.items():
                means[trial] = statistics.fmean(loss - effects[fold] for fold, loss in found.items())
    return means


# --- of a record ------------------------------------------------------------------------------------------


def repeats_of(state: SweepState) -> Repeats | None:
    """Return how the sweep's best configurations are trained again; None where they are not."""
    known = state.sweep.get("repeats")
    return None if known is None else Repeats.of("repeats", known)


def repeated(state: SweepState) -> list[Standing]:
    """Return a sweep's configurations that were trained again, the best mean first."""
    repeats = repeats_of(state)
    if repeats is None or not state.repetitions:
        return []
    again = list(state.repetitions.values())
    first = {one.repeats: state.trials[one.repeats] for one in again if one.repeats in state.trials}
    trainings = [Training.of(trial) for trial in (*first.values(), *again)]
    return standings(trainings, repeats, state.mode)


def winner(state: SweepState) -> Best | None:
    """Return the best report of the configuration that wins; where none was trained again, of all trials."""
    first = next(iter(repeated(state)), None)
    if first is None or not first.again or not math.isfinite(first.mean):
        return state.best
    return _best_training(state, first)


def ranked(state: SweepState) -> list[str]:
    """Return the best configurations first, each by a trial of it.

    Repeated configurations come first, by their means, each by its best training and without diverged ones. The others
    follow by the best values of their trials.
    """
    again = [one for one in repeated(state) if one.again]
    trainings = [_best_training(state, one) for one in again if math.isfinite(one.mean)]
    known = {one.trial for one in again}
    sign = -1.0 if state.mode == "max" else 1.0
    others = [
        (sign * trial.value, trial.index, trial.id)
        for trial in state.from_scratch
        if trial.value is not None and not trial.failed and trial.id not in known
    ]
    return [*(one.trial for one in trainings if one is not None), *(name for *_, name in sorted(others))]


def _best_training(state: SweepState, standing: Standing) -> Best | None:
    """Return the best report of a configuration's trainings that count."""
    best: Best | None = None
    for trial in (state.trials[name] for name in standing.trials):
        if trial.best is None or trial.value is None or trial.failed:
            continue
        if best is None or is_better(trial.value, best.value, state.mode):
            report = trial.history[trial.best]
            best = Best(trial.value, trial.id, trial.index, report["training_iteration"], report["epoch"])
    return best


def to_repeat(state: SweepState) -> list[tuple[str, int]]:
    """Return (trial, repetition) of each repetition that a sweep has left to begin."""
    repeats = repeats_of(state)
    if repeats is None:
        return []
    return plan([Training.of(trial) for trial in list(state.trials.values())], repeats, state.mode)
