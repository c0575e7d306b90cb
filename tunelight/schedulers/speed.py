"""How fast gangs of each size train, and what a resize costs: learned from what trials report."""

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
    """One trial's last report (its progress, its second of training, its workers), and what it showed."""

    progress: float = 0.0
    second: float = 0.0
    workers: int = 0
    fresh: bool = True
    """Whether the next interval includes a start."""
    each: dict[int, float] = field(default_factory=dict)
    """Workers -> seconds a unit of progress, from the last interval without start or resize."""
    burden: tuple[float, float, bool] | None = None
    """Seconds, units and whether it was a start, of the last interval with one, until the next is known."""


@dataclass(slots=True)
class _Recent:
    values: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    middle: float = math.nan

    def add(self, value: float) -> None:
        self.values.append(value)
        self.middle = median(self.values)


class Speed:
    """Learns seconds a unit of progress by size of gang, what doubling a gang gains, and what a resize costs.

    Until it is measured, doubling is taken to halve the time, and a resize to cost what the fastest start did (or
    nothing): warm workers meet anew in both. What a growth waits for, the start of new workers, is no cost of it.
    """

    def __init__(self) -> None:
        self._each: dict[int, _Recent] = {}
        self._gain: dict[int, _Recent] = {}
        self._resize = _Recent()
        self._start = _Recent()
        self._shortest_start_s = math.inf
        self.longest_start_s = 0.0
        """What the slowest start so far has cost, in seconds: a cold one, as a rule."""

    def heard(self, pace: Pace, progress: float, second: float, workers: int) -> None:
        """Learn from one report of a trial, whose ``pace`` is brought up to date."""
        units, passed = progress - pace.progress, second - pace.second
        if units > 0 and passed > 0:
            if pace.fresh or workers != pace.workers:
                pace.burden = (passed, units, pace.fresh)
            else:
                self._learn(pace, passed / units, workers)
        pace.fresh = False
        pace.progress, pace.second, pace.workers = progress, second, workers

    def restarted(self, pace: Pace) -> None:
        """Note that a trial's next report comes from another start."""
        pace.fresh, pace.burden, pace.workers = True, None, 0

    def each(self, workers: int) -> float:
        """Return seconds a unit of progress on so many workers; NaN where none of any size was measured."""
        if workers in self._each:
            return self._each[workers].middle
        if not self._each:
            return math.nan
        near = min(self._each, key=lambda size: abs(math.log2(size / workers)))
        return self._each[near].middle * self.factor(near, workers)

    def factor(self, now: int, then: int) -> float:
        """Return by how much time a unit of progress changes when ``now`` workers become ``then``."""
        small, large = sorted((now, then))
        shrink = float(2.0 ** -(math.log2(large / small) * self.gain(large))) if large > small else 1.0
        return shrink if then >= now else 1.0 / shrink

    def gain(self, workers: int) -> float:
        """Return log2 of how much faster twice the workers are, at about this size (1: twice as fast)."""
        if not self._gain:
            return 1.0
        near = min(self._gain, key=lambda size: abs(math.log2(size / workers)))
        return self._gain[near].middle

    @property
    def resize_s(self) -> float:
        """What a resize costs, in seconds."""
        known = self._resize.middle if self._resize.values else self._shortest_start_s
        return max(known, 0.0) if math.isfinite(known) else 0.0

    @property
    def start_s(self) -> float:
        """What a start costs, in seconds."""
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
    """Return the sizes that a gang may have: ``least``, its doubles, and ``most``."""
    found = [min_workers]
    while found[-1] * 2 <= max_workers:
        found.append(found[-1] * 2)
    return found if found[-1] >= max_workers else [*found, max_workers]
