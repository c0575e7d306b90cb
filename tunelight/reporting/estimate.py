"""When a sweep will be over, as far as that can be told from the trials that have ended."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from tunelight.record import PENDING, RUNNING, TERMINAL, SweepState, TrialState
from tunelight.reporting.words import epochs

_LEAST: Final = 3
"""Ended trials before which nothing is said."""


def seconds_left(state: SweepState, now: float, total: int | None) -> float | None:
    """Return an estimate of the seconds until a sweep is over; None where that is unknown.

    A trial that has not begun will take what ended ones took on average. One that runs will take what those that ran
    longer than it took beyond (their mean residual life); where none did, what is missing to ``max_epochs`` at its own
    pace. The sum is shared by as many as run now, and is never less than the longest of them. A time budget ends it.

    Unknown are: sweeps of an unknown number of trials, fewer than three ended ones, none that runs now, and trials that
    outlast all others where ``max_epochs`` is not known. Under schedulers that stop trials early, who ends first is
    short, so that the first estimates are too low.
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
    waiting = max(0, total - len(trials)) + state.counts[PENDING]
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
    """Return how much longer than ``so_far`` those took that took longer, on average."""
    first = bisect_right(took, so_far)
    longer = len(took) - first
    return (sums[-1] - sums[first]) / longer - so_far if longer else None


def _by_pace(state: SweepState, trial: TrialState, now: float) -> float | None:
    most, done = state.sweep.get("max_epochs"), epochs(trial.history[-1]) if trial.history else None
    if not isinstance(most, int) or not done:
        return None
    return max(0.0, trial.elapsed(now) / done * (most - done))
