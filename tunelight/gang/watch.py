"""Tells a gang that hangs from one that takes its time: by batches, of which somebody has to finish one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sign:
    """A rank's sign of life: how much it has done (batches, reports), and whether it waits for other ranks."""

    done: int = 0
    waits: bool = False
    begun: bool = False
    """True once a Trainer has come to its set-up."""


@dataclass
class HangWatch:
    """Says which rank holds the others up; times are seconds of one clock, passed in.

    A gang hangs when no rank has done anything more for ``limit_s`` seconds, although all of them had done
    something before and all of them still answer. Between a Trainer's set-up and the first batch (which may have to
    be compiled), it hangs when some of them wait for others so long. None: it is never said to hang. What does
    nothing that is counted (training code without Lightning, between two reports) is not watched.
    """

    limit_s: float | None
    _signs: dict[int, Sign] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def rest(self) -> None:
        """Begin anew: the ranks had to wait for somebody else."""
        self._since.clear()
        self._heard.clear()

    def hear(self, rank: int, sign: Sign, now: float) -> None:
        """Take a rank's sign of life."""
        last = self._signs.get(rank, Sign(-1))
        if (sign.done, sign.begun) != (last.done, last.begun):
            self._since.pop(rank, None)
        self._since.setdefault(rank, now)
        self._signs[rank], self._heard[rank] = sign, now

    def stuck(self, ranks: list[int]) -> int | None:
        """Return which of the running ``ranks`` to give up; None while they get on.

        It is the one that has done least and waits for nobody, as far as can be seen.
        """
        if self.limit_s is None or not ranks:
            return None
        for rank in ranks:
            sign, quiet = self._signs.get(rank, Sign()), self._heard.get(rank, 0.0) - self._since.get(rank, 0.0)
            if not (sign.done or sign.begun) or quiet < self.limit_s:
                return None
        signs = self._signs
        if any(not signs[rank].done for rank in ranks) and len({signs[rank].waits for rank in ranks}) == 1:
            return None
        return min(ranks, key=lambda rank: (signs[rank].done, signs[rank].waits, -rank))
