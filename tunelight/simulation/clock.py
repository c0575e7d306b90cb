"""A virtual clock, and the queue of planned calls that moves it."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

RESOURCE, STATE, TASK = range(3)
"""The order of events at the same time, which is that of Ray's actor manager."""


class Event:
    """A planned call; ``call`` is None once it has happened or was cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the event; it is removed from the queue when its time comes."""
        self.call = None


class Clock:
    """Virtual seconds since the start of a simulation, and the events to come; O(log n) per event.

    At the same time, resources come before actors' states, and those before tasks; then the first planned comes first.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        self._queue: list[tuple[float, int, int, Event]] = []
        self._serial = itertools.count()

    def __call__(self) -> float:
        """Return the virtual time."""
        return self.now

    def after(self, delay_s: float, call: Callable[[], Any], kind: int = TASK) -> Event:
        """Plan ``call`` for ``delay_s`` seconds from now (not before now)."""
        event = Event(call)
        heapq.heappush(self._queue, (self.now + max(0.0, delay_s), kind, next(self._serial), event))
        return event

    def step(self, within_s: float = math.inf) -> bool:
        """Move to the next event and call it; return False if there is none within ``within_s`` seconds."""
        while self._queue:
            time, _, _, event = self._queue[0]
            if event.call is not None and time > self.now + within_s:
                return False
            heapq.heappop(self._queue)
            if event.call is not None:
                call, event.call = event.call, None
                self.now = time
                self.happened += 1
                call()
                return True
        return False
