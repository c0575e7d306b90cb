"""Finds a rank that is slower than the others, by the part of each step in which it waits for no other rank.

All ranks of a gang finish equally many steps, since each step ends when the slowest rank has finished it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tunelight.machine.versions import node_name
from tunelight.messages import Slow

Step = tuple[float, float]
"""A rank's own seconds in a step, and those of the whole step."""

_STEPS = 20
_ROW = 3
"""How many windows in a row a rank has to be slow."""
_MATTERS = 0.05
"""What part of a step the others have to lose at least."""
_MOST_STEPS = 10_000


@dataclass
class SlowWatch:
    """Compares the ranks by the medians of windows: at least 20 steps of each rank, and ``window_s`` seconds.

    A rank is slow that needs ``by`` times more than the median of the others, three windows in a row, and holds up a
    step by a twentieth. None: no rank is compared. Times are seconds of one clock, passed in.
    """

    by: float | None
    window_s: float = 5.0
    _began: float | None = None
    _steps: dict[int, list[Step]] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)

    def hear(self, rank: int, steps: Sequence[Step], size: int, now: float) -> list[Slow]:
        """Add a rank's last steps; return the ranks of ``size`` that are slow, if a window ends with it."""
        if self.by is None or size < 2 or not steps:
            return []
        self._began = now if self._began is None else self._began
        self._steps[rank] = [*self._steps.get(rank, ()), *steps][-_MOST_STEPS:]
        complete = len(self._steps) == size and all(len(one) >= _STEPS for one in self._steps.values())
        if not complete or now - self._began < self.window_s:
            return []
        own = {one: median(mine for mine, _ in steps) for one, steps in self._steps.items()}
        whole = {one: median(step for _, step in steps) for one, steps in self._steps.items()}
        self._began, self._steps = now, {}
        found = []
        for one, seconds in own.items():
            others = median(other for peer, other in own.items() if peer != one)
            slow = seconds > (1 + self.by) * others and seconds - others > _MATTERS * whole[one]
            self._rows[one] = self._rows.get(one, 0) + 1 if slow else 0
            if self._rows[one] >= _ROW:
                found.append(Slow(one, seconds, others))
        return found


class SlowRanks:
    """Says which ranks of a run are slow."""

    def __init__(self) -> None:
        self._named: set[tuple[int, int, str]] = set()

    def note(self, slow: Slow, gang: Any) -> str | None:
        """Return a note on a slow rank, once for each worker."""
        location = gang.locations[slow.rank]
        worker = (slow.rank, location.pid, location.node_id)
        if worker in self._named:
            return None
        self._named.add(worker)
        where = node_name(location.hostname, location.node_id, location.address)
        return (
            f"rank {slow.rank} on {where} is slow: its own part of a step takes {_seconds(slow.seconds)}, and "
            f"{_seconds(slow.others)} in the median of the others"
        )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"
