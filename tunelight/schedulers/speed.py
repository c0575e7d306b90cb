"""The speed of gangs by their size, and the cost of a resize, learned from trials' reports."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

_RECENT: Final = 32
"""Medians are over this many of the last measurements."""


@dataclass(slots=True)
class Pace:
    """One trial's last report (its progress, its second of training, its workers), and its measured speed."""

    progress: float = 0.0
    second: float = 0.0
    workers: int = 0
    fresh: bool = True
    """Whether the next interval includes a start."""
    each: dict[int, float] = field(default_factory=dict)
    """Workers -> seconds per unit of progress, from the last interval without start or resize."""
    burden: tuple[float, float, bool] | None = None
    """Seconds, units and whether it was a start, of the last interval with a start or resize, until it is evaluated."""


@dataclass(slots=True)
class _Recent:
    values: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    middle: float = math.nan

    def add(self, value: float) -> None:
        self.values.append(value)
        self.middle = median(self.values)


class Speed:
    """Learns seconds per unit of progress by size of gang, the gain of doubling a gang, and the cost of a resize.

    Until they are measured, doubling is assumed to halve the time, and a resize to cost as much as the fastest start
    (or nothing): in both, warm workers meet again. The start of new workers is not part of the cost of a resize.
    """

    def __init__(self) -> None:
        self._each: dict[int, _Recent] = {}
        self._gain: dict[int, _Recent] = {}
        self._resize = _Recent()
        self._start = _Recent()
        self._shortest_start_s = math.inf
        self.longest_start_s = 0.0
        """The slowest start so far in seconds, usually a cold one."""

    def heard(self, pace: Pace, progress: float, second: float, workers: int) -> None:
        """Learn from a report of a trial, and update its ``pace``."""
        units, passed = progress - pace.progress, second - pace.second
        if units > 0 and passed > 0:
            if pace.fresh or workers != pace.workers:
                pace.burden = (passed, units, pace.fresh)
            else:
                self._learn(pace, passed / units, workers)
        pace.fresh = False
        pace.progress, pace.second, pace.workers = progress, second, workers

    def restarted(self, pace: Pace) -> None:
        """Note that a trial was started again."""
        pace.fresh, pace.burden, pace.workers = True, None, 0

    def each(self, workers: int) -> float:
        """Return seconds per unit of progress on this many workers; NaN before the first measurement."""
        if workers in self._each:
            return self._each[workers].middle
        if not self._each:
            return math.nan
        near = min(self._each, key=lambda size: abs(math.log2(size / workers)))
        return self._each[near].middle * self.factor(near, workers)

    def factor(self, now: int, then: int) -> float:
        """Return the ratio of a unit of progress's time on ``then`` workers to that on ``now`` workers."""
        small, large = sorted((now, then))
        shrink = float(2.0 ** -(math.log2(large / small) * self.gain(large))) if large > small else 1.0
        return shrink if then >= now else 1.0 / shrink

    def gain(self, workers: int) -> float:
        """Return log2 of the speed-up by doubling a gang to about this size (1: twice as fast)."""
        if not self._gain:
            return 1.0
        near = min(self._gain, key=lambda size: abs(math.log2(size / workers)))
        return self._gain[near].middle

    @property
    def resize_s(self) -> float:
        """The cost of a resize in seconds."""
        known = self._resize.middle if self._resize.values else self._shortest_start_s
        return max(known, 0.0) if math.isfinite(known) else 0.0

    @property
    def start_s(self) -> float:
        """The cost of a start in seconds."""
        return max(self._start.middle, 0.0) if self._start.values else 0.0

    def _learn(self, pace: Pace, each: float, workers: int) -> None:
        self._each.setdefault(workers, _Recent()).add(each)
        if pace.burden is not None:
            seconds, units, start = pace.burden
            cost = seconds - units * each
            (self._start if start else self._resize).add(cost)
            if start:
                self.longest_start_s = max(self.longest_start_s, cost)
                self._shortest_start_s = min(self._shortest_start_s, cost)
            pace.burden = None
        known = [size for size in pace.each if size != workers]
        if known and workers not in pace.each:
            other = known[-1]
            doublings = math.log2(workers / other)
            self._gain.setdefault(max(workers, other), _Recent()).add(math.log2(pace.each[other] / each) / doublings)
        pace.each.pop(workers, None)
        pace.each[workers] = each


def sizes(min_workers: int, max_workers: int) -> list[int]:
    """Return the sizes that a gang may have: ``min_workers``, that doubled again and again, and ``max_workers``."""
    found = [min_workers]
    while found[-1] * 2 <= max_workers:
        found.append(found[-1] * 2)
    return found if found[-1] >= max_workers else [*found, max_workers]
