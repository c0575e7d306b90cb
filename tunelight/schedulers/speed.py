"""The speed of gangs by their size, and the cost of a resize, learned from trials' reports."""

from __future__ import annotations

import math
from collections import defaultdict, deque
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


class _Recent(deque[float]):
    """The last measurements, and their median."""

    middle = math.nan

    def __init__(self) -> None:
        super().__init__(maxlen=_RECENT)

    def append(self, value: float) -> None:
        super().append(value)
        self.middle = median(self)


class Speed:
    """Learns seconds per unit of progress by size of gang, the gain of doubling a gang, and the cost of a resize.

    Until they are measured, doubling is assumed to halve the time, and a resize to cost as much as the fastest start
    (or nothing): in both, warm workers meet again. The start of new workers is not part of the cost of a resize.
    """

    def __init__(self) -> None:
        self._each: dict[int, _Recent] = defaultdict(_Recent)
        self._gain: dict[int, _Recent] = defaultdict(_Recent)
        self._resize, self._start = _Recent(), _Recent()
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
        if not self._each:
            return math.nan
        near = _nearest(self._each, workers)
        return self._each[near].middle * self.factor(near, workers)

    def factor(self, now: int, then: int) -> float:
        """Return the ratio of a unit of progress's time on ``then`` workers to that on ``now`` workers."""
        if now == then:
            return 1.0
        return float((then / now) ** -self.gain(max(now, then)))

    def gain(self, workers: int) -> float:
        """Return log2 of the speed-up by doubling a gang to about this size (1: twice as fast)."""
        return self._gain[_nearest(self._gain, workers)].middle if self._gain else 1.0

    @property
    def resize_s(self) -> float:
        """The cost of a resize in seconds."""
        known = self._resize.middle if self._resize else self._shortest_start_s
        return max(known, 0.0) if math.isfinite(known) else 0.0

    @property
    def start_s(self) -> float:
        """The cost of a start in seconds."""
        return max(self._start.middle, 0.0) if self._start else 0.0

    def _learn(self, pace: Pace, each: float, workers: int) -> None:
        self._each[workers].append(each)
        if pace.burden is not None:
            seconds, units, start = pace.burden
            cost = seconds - units * each
            (self._start if start else self._resize).append(cost)
            if start:
                self.longest_start_s = max(self.longest_start_s, cost)
                self._shortest_start_s = min(self._shortest_start_s, cost)
            pace.burden = None
        others = [size for size in pace.each if size != workers]
        if others and workers not in pace.each:
            other = others[-1]
            doublings = math.log2(workers / other)
            self._gain[max(workers, other)].append(math.log2(pace.each[other] / each) / doublings)
        pace.each.pop(workers, None)
        pace.each[workers] = each


def _nearest(sizes: dict[int, _Recent], workers: int) -> int:
    """Return the size that is nearest by its ratio."""
    return min(sizes, key=lambda size: abs(math.log2(size / workers)))


def sizes(min_workers: int, max_workers: int) -> list[int]:
    """Return the sizes that a gang may have: ``min_workers``, that doubled again and again, and ``max_workers``."""
    found = [min_workers]
    while found[-1] * 2 <= max_workers:
        found.append(found[-1] * 2)
    return found if found[-1] >= max_workers else [*found, max_workers]
