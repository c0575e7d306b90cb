"""Estimate the time until a sweep is over, by the trials that have ended."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from tunelight.record import PENDING, RUNNING, TERMINAL, SweepState, TrialState
from tunelight.record.view import epochs

_LEAST: Final = 3
"""How many trials must have ended."""


def seconds_left(state: SweepState, now: float, total: int | None) -> float | None:
    """Return an estimate of the seconds until a sweep is over; None where that is unknown.

    A trial that has not begun is expected to take the mean time of ended ones. One that runs is expected to take the
    mean residual life of those that ran longer than it; if none did, the time to ``max_epochs`` at its own pace. The
    sum is divided by the number of running trials, and is at least the longest of them. A time budget limits it.

    It is unknown if the number of trials is, if fewer than three have ended, if none runs, and if a trial has run
    longer than all ended ones and ``max_epochs`` is not known. Under schedulers that stop trials early, the first
    estimates are too low, since the first trials to end are the short ones.
    """
    ends = state.sweep.get("ends")
    budget = max(0.0, ends - now) if isinstance(ends, int | float) else None
    found = _by_trials(state, now, total)
    if found is None or budget is None:
        return found
    return min(found, budget)


def _by_trials(state: SweepState, now: float, total: int | None) -> float | None:
    trials = list(state.trials.values())
    took = sorted(trial.seconds for trial in trials if trial.state in TERMINAL and trial.seconds > 0)
    running = state.counts[RUNNING]
    if not total or len(took) < _LEAST or not running:
        return None
    sums = [0.0, *accumulate(took)]
    mean = sums[-1] / len(took)
    waiting = max(0, total - len(trials) + len(state.repetitions)) + state.counts[PENDING]
    left, longest = mean * waiting, 0.0
    for trial in list(state.live.values()):
        more = _residual(took, sums, trial.elapsed(now))
        if more is None:
            more = _by_pace(state, trial, now)
        if more is None:
            return None
        left += more
        longest = max(longest, more)
    return max(left / running, longest)


def _residual(took: list[float], sums: list[float], so_far: float) -> float | None:
    """Return the mean residual life after ``so_far`` seconds; None if no trial took longer."""
    first = bisect_right(took, so_far)
    longer = len(took) - first
    return (sums[-1] - sums[first]) / longer - so_far if longer else None


def _by_pace(state: SweepState, trial: TrialState, now: float) -> float | None:
    max_epochs, done = state.sweep.get("max_epochs"), epochs(trial.history[-1]) if trial.history else None
    if not isinstance(max_epochs, int) or not done:
        return None
    return max(0.0, trial.elapsed(now) / done * (max_epochs - done))
