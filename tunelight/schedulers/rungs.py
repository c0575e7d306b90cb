"""Rungs of successive halving: which trials reached them, are among the best, wait, or went on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sortedcontainers import SortedList

from tunelight.schedulers.common import top_count

_LATE: Final = 1.5
"""A trial is promoted later only if it is among the best 1/eta to this power."""


@dataclass
class Rung:
    """One milestone, with the losses of trials when they first reached it; O(log n) per operation.

    Trials are compared by (loss, order of arrival), so that there are no ties: of equals the earlier is better.
    """

    milestone: float
    filed: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Trial id -> (loss, order of arrival), in that order."""
    promoted: set[str] = field(default_factory=set)
    """Ids of the trials that went past this rung."""
    _order: SortedList = field(default_factory=SortedList)
    _waiting: SortedList = field(default_factory=SortedList)

    def file(self, trial_id: str, loss: float) -> None:
        """File a trial that reaches this rung for the first time."""
        key = (loss, len(self.filed))
        self.filed[trial_id] = key
        self._order.add(key)

    def rank(self, trial_id: str) -> int:
        """Return how many filed trials are better than this one."""
        return int(self._order.bisect_left(self.filed[trial_id]))

    def among_best(self, trial_id: str, eta: float, *, closed: bool) -> bool:
        """Tell whether a trial is among the best 1/eta; at least one is, if the rung is closed."""
        return self.rank(trial_id) < self._best(eta, closed=closed)

    def standing(self, trial_id: str, eta: float, *, closed: bool, unit: str = "") -> str:
        """Return a trial's place and how many may go on, in words; ``unit``: what is counted, where not epochs."""
        n = self._best(eta, closed=closed)
        going = f"the best {n} go on" if n > 1 else "the best goes on" if n else "none goes on yet"
        return f"{self.place(trial_id, unit)}; {going}"

    def place(self, trial_id: str, unit: str = "") -> str:
        """Return a trial's place among those filed so far, in words: ``place 7 of 12 at rung 4``."""
        counted = f" ({unit})" if unit else ""
        return f"place {self.rank(trial_id) + 1} of {len(self.filed)} at rung {self.milestone:.12g}{counted}"

    def wait(self, trial_id: str) -> None:
        """Let a paused trial wait here for a promotion."""
        self._waiting.add((*self.filed[trial_id], trial_id))

    def leave(self, trial_id: str) -> None:
        """Remove a trial from those that wait, if it is among them."""
        if trial_id in self.filed:
            self._waiting.discard((*self.filed[trial_id], trial_id))

    def ready(self, eta: float, *, closed: bool) -> Iterator[str]:
        """Yield the waiting trials that may be promoted now, the best first.

        They are among the best 1/eta^1.5, or the best. A late promotion is marginal: the next rung usually drops it.
        """
        n = top_count(len(self.filed), eta)
        late = max(top_count(len(self.filed), eta**_LATE), 1 if closed or n else 0)
        for *key, trial_id in self._waiting:
            if self._order.bisect_left(tuple(key)) >= late:
                return
            yield trial_id

    def waiting(self) -> list[str]:
        """Return the waiting trials, the worst first."""
        return [trial_id for *_, trial_id in reversed(self._waiting)]

    def _best(self, eta: float, *, closed: bool) -> int:
        return max(top_count(len(self.filed), eta), 1 if closed else 0)

    def described(self, eta: float, mode: str | None, *, closed: bool) -> str:
        """Return how many trials are filed, and the value to beat, in words."""
        if not self.filed:
            return f"{self.milestone:g}: none yet"
        n = min(self._best(eta, closed=closed), len(self.filed))
        cutoff = float(self._order[n - 1][0]) if n else math.nan
        shown = f", cutoff {-cutoff if mode == 'max' and math.isfinite(cutoff) else cutoff:.4g}" if n else ""
        promoted = f", {len(self.promoted)} promoted" if self.promoted else ""
        return f"{self.milestone:g}: {len(self.filed)} filed{promoted}{shown}"


def ladder(first: float, eta: float, end: float) -> list[Rung]:
    """Return the rungs at ``first * eta ** k`` below ``end``."""
    rungs: list[Rung] = []
    while first < end:
        rungs.append(Rung(first))
        first *= eta
    return rungs


def described(rungs: list[Rung], eta: float, mode: str | None, *, closed: bool) -> str:
    """Return rungs in words, for Tune's own table."""
    return " | ".join(rung.described(eta, mode, closed=closed) for rung in rungs) or "no rung below max_t"
