"""PASHA: train trials no further than is needed to rank them, with the noise of validation measured.

Bohdal, Balles, Wistuba, Ermis, Archambeau and Zappella, "PASHA: Efficient HPO and NAS with Progressive Resource
Allocation" (https://arxiv.org/abs/2207.06940): halving needs no higher rung while the two highest order their trials
alike. Two trials count as alike that differ by less than ``epsilon``.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from sortedcontainers import SortedList

from tunelight.schedulers.common import top_count
from tunelight.schedulers.rungs import Rung

_RECENT: Final = 512
"""Noise is the median over this many of the last measurements."""
_NORMAL: Final = 1.4826
"""Standard deviations in a median absolute deviation of normal noise."""
_THIRD: Final = math.sqrt(20)
"""Standard deviations of a third difference of values with independent noise, in those of one value."""
_DOUBT: Final = 1.645 * math.sqrt(2)
"""How many standard deviations of one value two equal ones differ by at most, nine times of ten."""


class Pasha:
    """Tells when trials rank differently at the top rung than at the rung below; O(log n) per report.

    It differs from the paper in two ways. There ``epsilon`` is a percentile (90) of the distances between trials that
    change places as they train; here noise is measured by third differences of a trial's reports between the two rungs,
    in which a learning curve hardly shows. There the whole order of the two rungs is compared; here only a trial that
    comes to the top rung, if it is among the best at either: it is in order if the trial that had its new place below
    was worth the same there, up to noise.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, ...]] = {}
        self._recent: deque[float] = deque()
        self._sorted = SortedList()
        self._below = SortedList()

    @property
    def epsilon(self) -> float:
        """The difference below which two losses count as alike; 0 before any noise was measured."""
        if not self._sorted:
            return 0.0
        return _DOUBT * _NORMAL / _THIRD * float(self._sorted[len(self._sorted) // 2])

    def heard(self, trial_id: str, loss: float) -> None:
        """Learn the noise from a report between, or at, the two highest rungs."""
        known = (*self._last.get(trial_id, ()), loss)[-4:]
        self._last[trial_id] = known
        if len(known) < 4:
            return
        third = abs(known[3] - 3 * known[2] + 3 * known[1] - known[0])
        if math.isfinite(third):
            self._recent.append(third)
            self._sorted.add(third)
            if len(self._recent) > _RECENT:
                self._sorted.remove(self._recent.popleft())

    def contradicts(self, top: Rung, below: Rung, trial_id: str, eta: float) -> bool:
        """Tell whether a trial that was just filed at the top rung ranks differently there than below."""
        own, rank = below.filed[trial_id][0], top.rank(trial_id)
        before = self._below.bisect_left(own)
        self._below.add(own)
        if min(rank, before) >= max(1, top_count(len(self._below), eta)):
            return False
        return abs(float(self._below[min(rank, len(self._below) - 1)]) - own) > self.epsilon

    def rung_added(self) -> None:
        """Forget what was learned between rungs that are no longer the highest."""
        for known in (self._last, self._recent, self._sorted, self._below):
            known.clear()
