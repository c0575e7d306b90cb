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


def _end(trial: TrialState) -> str:
    """Return how a trial ended, also where its driver died before it recorded that; INTERRUPTED while it may report."""
    return trial.state if trial.state in TERMINAL else trial.due


def cut_off(trial: TrialState) -> bool:
    """Tell whether a trial may still report, now or once its sweep is resumed."""
    return _end(trial) == INTERRUPTED


def _whole(trial: TrialState, reports: float) -> bool:
    """Tell whether a trial ended by itself, or made so many reports."""
    return _end(trial) == FINISHED or trial.reports >= reports


def _loss(trial: TrialState, mode: str) -> float | None:
    """Return a trial's best value as a loss; None if it failed, or may still report: that says nothing of its keys."""
    end = _end(trial)
    if end == INTERRUPTED or (end in FAILED and end != DIVERGED):
        return None
    if end == DIVERGED or trial.value is None:
        return math.inf
    return -trial.value if mode == "max" else trial.value


def chosen(trials: Iterable[TrialState], top: int, mode: str) -> list[TrialState]:
    """Return the trials of the search that came furthest, best first.

    Those that ended by themselves come first, by their best value; then the others, by how many reports they made.
    Branches are not among them: they have another trial's training.
    """
    found = []
    for trial in trials:
        loss = _loss(trial, mode)
        if trial.repeats is None and trial.branch is None and trial.value is not None and loss not in (None, math.inf):
            finished = _end(trial) == FINISHED
            found.append(((not finished, 0 if finished else -trial.reports, loss, trial.index), trial))
    return [trial for _, trial in sorted(found, key=lambda entry: entry[0])[:top]]


def length(first: Sequence[TrialState]) -> float:
    """Return how many reports make a training that counts, by the trials that came furthest.

    Infinite, if any of those ended by itself: then only trainings that do so count. Else as many as the longest made.
    """
    if any(_end(trial) == FINISHED for trial in first):
        return math.inf
    return max((trial.reports for trial in first), default=0)


def plan(trials: Sequence[TrialState], repeats: Repeats, mode: str) -> list[tuple[str, int]]:
    """Return (trial, repetition) of each training that is still to begin, once all trials of the search have ended.

    The second training of each configuration comes first, then the third, ... The last ones replace trials of the
    search that were stopped too early to count.
    """
    first = chosen(trials, repeats.top, mode)
    short = {trial.id for trial in first if not _whole(trial, length(first))}
    made = {(trial.repeats, trial.repetition) for trial in trials if trial.repeats is not None}
    wanted = [
        (trial.id, number)
        for number in range(1, repeats.repeats + 1)
        for trial in first
        if number < repeats.repeats or trial.id in short
    ]
    return [again for again in wanted if again not in made]


def standings(trials: Sequence[TrialState], repeats: Repeats, mode: str) -> list[Standing]:
    """Return the configurations that were trained again, the best mean first.

    A trial of the search that was stopped before the others does not count. A configuration whose repetitions have all
    failed counts with its single value all the same, behind the others.

    Args:
        trials: all of the sweep.
        repeats: how they were trained again. With folds, differences between folds count for no configuration.
        mode: whether less or more is better.
    """
    known = {trial.id: trial for trial in trials}
    by_trial: dict[str, list[TrialState]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.repetition, trial.index)):
        first = known.get(trial.repeats or "")
        if first is not None and first.repeats is None and not cut_off(trial):
            by_trial.setdefault(first.id, [first]).append(trial)
    reports = length([known[trial.repeats] for trial in trials if trial.repeats in known])  # running ones, too
    losses: dict[str, dict[str, float]] = {}
    for first_id, made in by_trial.items():
        losses[first_id] = {
            trial.id: loss
            for trial in made
            if (loss := _loss(trial, mode)) is not None
            and (_whole(trial, reports) or math.isinf(loss))  # one that was too short counts only if it diverged
        }
    again = {first_id: found for first_id, found in losses.items() if any(known[name].repeats for name in found)}
    means = _means(again, repeats, known)
    sign = -1.0 if mode == "max" else 1.0
    standing = []
    for first_id in losses:
        counting = again.get(first_id) or {first_id: _loss(known[first_id], mode) or 0.0}
        mean = means.get(first_id, statistics.fmean(counting.values()))
        standing.append(
            Standing(
                first_id,
                tuple(counting),
                tuple(sign * loss for loss in counting.values()),
                tuple(trial.id for trial in by_trial[first_id][1:] if trial.id not in counting),
                sign * mean,
                statistics.stdev(counting.values()) if len(counting) > 1 and math.isfinite(mean) else None,
            )
        )
    return sorted(standing, key=lambda each: (not each.again, sign * each.mean, known[each.trial].index))


def _means(
    losses: Mapping[str, Mapping[str, float]], repeats: Repeats, known: Mapping[str, TrialState]
) -> dict[str, float]:
    """Return the mean of each configuration, of ``losses`` by trial of the search and by training.

    With folds, those are of the additive model mean + effect of the fold, fitted by alternating least squares, since a
    configuration that missed a hard fold would seem better than it is. Where no training is missing, the means are the
    plain ones. Configurations that diverged have no part in it.
    """
    means = {trial: statistics.fmean(found.values()) for trial, found in losses.items()}
    if repeats.folds:
        table = {
            trial: {known[trial_id].repetition % repeats.repeats: loss for trial_id, loss in found.items()}
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
    first = {trial.repeats: state.trials[trial.repeats] for trial in again if trial.repeats in state.trials}
    return standings([*first.values(), *again], repeats, state.mode)


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
    again = [standing for standing in repeated(state) if standing.again]
    trainings = [_best_training(state, standing) for standing in again if math.isfinite(standing.mean)]
    known = {standing.trial for standing in again}
    sign = -1.0 if state.mode == "max" else 1.0
    others = [
        (sign * trial.value, trial.index, trial.id)
        for trial in state.from_scratch
        if trial.value is not None and not trial.failed and trial.id not in known
    ]
    return [*(trial.trial for trial in trainings if trial is not None), *(name for *_, name in sorted(others))]


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


def to_repeat(state: SweepState, repeats: Repeats | None) -> list[tuple[str, int]]:
    """Return (trial, repetition) of each repetition that a sweep has left to begin."""
    return [] if repeats is None else plan(list(state.trials.values()), repeats, state.mode)
