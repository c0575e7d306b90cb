"""What a sweep has spent by when: the time in which trials ran, and the worker-hours that they held."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunelight.record import is_better, metric_value
from tunelight.results.figures.style import Values
from tunelight.results.figures.timeline import holds_of

if TYPE_CHECKING:
    from tunelight.results.figures.data import Sweep


@dataclass(frozen=True)
class Spending:
    """What had been spent at some times (seconds since the epoch), in seconds; it grows evenly in between."""

    times: Values
    wall: Values
    """Time in which a trial ran: what passes between an interruption and its resume is left out."""
    workers: Values
    """The sum over workers of the time in which a trial held them, starts and faults included."""

    def at(self, time: float) -> tuple[float, float]:
        """Return wall time and workers' time that had been spent at a time."""
        if not len(self.times):
            return 0.0, 0.0
        return float(np.interp(time, self.times, self.wall)), float(np.interp(time, self.times, self.workers))

    @property
    def total(self) -> tuple[float, float]:
        """Wall time and workers' time in all."""
        return self.at(math.inf)


def spending(results: Sweep) -> Spending:
    """Return what a sweep has spent by when. O(n log n) in the times that trials held workers."""
    holds = holds_of(results.record)
    if not holds:
        return Spending(*(np.empty(0) for _ in range(3)))
    ends = np.array([time for hold in holds for time in (hold.start, hold.end)])
    change = np.array([count for hold in holds for count in (hold.workers, -hold.workers)])
    times, place = np.unique(ends, return_inverse=True)
    held = np.cumsum(np.bincount(place, weights=change, minlength=len(times)))[:-1]
    steps = np.diff(times)
    begin = np.zeros(1)
    return Spending(
        times,
        np.concatenate([begin, np.cumsum(steps * (held > 0.5))]),
        np.concatenate([begin, np.cumsum(steps * held)]),
    )


@dataclass(frozen=True)
class Step:
    """A report that was better than all before it."""

    value: float
    trial: int
    wall: float
    """Seconds of wall time that the sweep had spent by then."""
    workers: float
    """Seconds of workers' time."""
    trials: int = 0
    """How many trials had begun by then."""


def improvements(results: Sweep, metric: str, mode: str) -> list[Step]:
    """Return the reports that made a sweep's best so far, in order of time; those of failed trials do not count.

    A report that does not say when it came, or says it by a clock that is far off, is taken to have come when its trial
    first ran, or last did.
    """
    spent, found = spending(results), []
    for trial in results.trials:
        if trial.failed:
            continue
        moves = [at for at, _ in results.record.trials[trial.id].moves]
        first = min(moves, default=results.record.started or 0.0)
        last = max(first, moves[-1] if len(moves) > 1 and trial.outcome != "has not ended" else math.inf)
        last = min(last, max(first, results.record.updated or first))
        for report in trial.history:
            value, at = metric_value(report, metric), report.get("timestamp")
            if value is not None and math.isfinite(value):
                time = min(max(float(at), first), last) if isinstance(at, int | float) else first
                found.append((time, trial.index, value))
    begun = sorted(trial.moves[0][0] for trial in results.record.trials.values() if trial.moves)
    steps: list[Step] = []
    for time, index, value in sorted(found):
        if not steps or is_better(value, steps[-1].value, mode):
            steps.append(Step(value, index, *spent.at(time), bisect_left(begun, time)))
    return steps
