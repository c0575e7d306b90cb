"""What all parts of one simulation share: clock, cluster, costs, and how many slots were reserved when."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.world.cluster import Cluster
from tests.world.costs import Costs

if TYPE_CHECKING:
    from tests.world.curves import Curve


STATE, TASK = range(2)
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

    At the same time, actors' states come before tasks; then the first planned comes first.
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


class Use(NamedTuple):
    """From ``time`` on, gangs have ``held`` slots reserved, of which running trials use ``busy``."""

    time: float
    held: int
    busy: int


class Happened(NamedTuple):
    """One event in a simulation's log."""

    time: float
    what: str
    trial: str
    detail: Any


@dataclass
class World:
    """One simulation's surroundings.

    Attributes:
        max_workers: how many logical workers a trial has (decision 0004).
        growing: gangs that wait for slots to grow, in the order of their requests.
    """

    cluster: Cluster
    costs: Costs
    seed: int = 0
    max_workers: int = 1
    first_until: int | None = 1
    metric: str | None = None
    mode: Any = "min"
    max_epochs: int | None = None
    keep_log: bool = False
    clock: Clock = field(default_factory=Clock)
    usage: list[Use] = field(default_factory=lambda: [Use(0.0, 0, 0)])
    happened: list[Happened] = field(default_factory=list)
    growing: dict[Any, None] = field(default_factory=dict)

    def epochs_of(self, curve: Curve) -> int:
        """Return how many epochs a trial trains if nobody stops it."""
        return curve.epochs if self.max_epochs is None else self.max_epochs

    def used(self, held: int = 0, busy: int = 0) -> None:
        """Record that slots were taken (or, if negative, given back) now."""
        if not held and not busy:
            return
        last = self.usage[-1]
        if last.time == self.clock.now:
            self.usage.pop()
        self.usage.append(Use(self.clock.now, last.held + held, last.busy + busy))

    def log(self, what: str, trial: Any, detail: Any = None) -> None:
        """Append an event to the log, if one is kept."""
        if self.keep_log:
            self.happened.append(Happened(self.clock.now, what, trial.trial_id, detail))
