"""The trials of a promoting scheduler, and the state of each."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ray.tune.experiment import Trial
from sortedcontainers import SortedList

from tunelight.schedulers.ledger import TrialResources
from tunelight.schedulers.speed import Pace

_LOOKS: Final = 8
"""How many starting or pausing trials are checked in one of Tune's steps."""


class State(Enum):
    """The state of a trial, as far as the scheduler knows."""

    WAITING = "waiting for a gang"
    GOING = "training"
    PAUSING = "writing the checkpoint of its pause"
    PAUSED = "paused"
    ENDED = "ended"


_COMING: Final = (State.WAITING, State.GOING)


@dataclass(slots=True, eq=False)
class Member:
    """One trial: its progress, its last loss, and what its gang was sent."""

    trial_id: str
    trial: Any = None
    resources: TrialResources | None = None
    state: State = State.ENDED
    target: int = 0
    """The index of the rung that it reaches next."""
    at: int = 0
    """The index of the rung that it waits at, while paused."""
    progress: float = 0.0
    loss: float = math.inf
    until: int | None = None
    """The next report that needs an answer, as its gang was told."""
    pace: Pace = field(default_factory=Pace)
    target_workers: int = 0
    """How many workers its gang was told to have."""
    since: int | None = None
    """Reports since the last ``Resize``; None: none since it started."""
    asked_at: float = 0.0
    """The second of its training at which that was."""
    refused: int = 0
    """How often in a row growing failed for want of workers."""
    again: bool = False
    """Whether it trains again although it was to pause, as after a fault, and is judged again at its next report."""

    def is_now(self, status: str) -> bool:
        """Tell whether Tune says so of the trial."""
        return self.trial is not None and self.trial.status == status


class Members(dict[str, Member]):
    """Trials by id, added as they are first asked for, and counted by their state and the rung that they reach next."""

    def __init__(self) -> None:
        super().__init__()
        self._towards: Counter[int] = Counter()
        self._going = SortedList()
        self.waiting: deque[Member] = deque()
        """Trials that were added and have not started as far as is known, the first added first."""
        self._pausing: deque[Member] = deque()
        self._starting: deque[Member] = deque()
        self._looked = 0

    def __missing__(self, trial_id: str) -> Member:
        self[trial_id] = Member(trial_id)
        return self[trial_id]

    @property
    def busy(self) -> bool:
        """Whether any trial trains, waits for a gang, or writes its checkpoint."""
        return bool(self._towards or self._pausing)

    @property
    def going(self) -> int:
        """How many trials train."""
        return len(self._going)

    def some_going(self) -> Iterator[Member]:
        """Yield a few of the trials that train, the furthest first, and the next ones at the next call."""
        first = self._looked if self._looked < len(self._going) else 0
        self._looked = first + _LOOKS
        for _, trial_id in self._going[first : self._looked]:
            yield self[trial_id]

    def any_towards(self, rung: int) -> bool:
        """Tell whether any trial may still reach the rung with this index, or a lower one."""
        return any(number <= rung for number in self._towards)

    def move(self, member: Member, state: State, target: int | None = None) -> None:
        """Change a trial's state, and the rung that it reaches next if ``target`` is given."""
        self._count(member, -1)
        member.state = state
        member.target = member.target if target is None else target
        self._count(member, 1)
        if state is State.WAITING:
            self.waiting.append(member)  # a duplicate is dropped when it is checked
        elif state is State.PAUSING:
            self._pausing.append(member)

    def starts(self, member: Member) -> None:
        """Note that a trial trains as soon as Tune has a gang for it."""
        self.move(member, State.GOING)
        self._starting.append(member)

    def settle(
        self, started: Callable[[Member], None], begun: Callable[[Member], None], paused: Callable[[Member], None]
    ) -> None:
        """Find out which trials Tune has started, have their gang, or have paused, for which it has no callbacks."""
        for _ in range(len(self.waiting)):
            member = self.waiting[0]
            if member.state is State.WAITING and member.is_now(Trial.PENDING):
                break
            self.waiting.popleft()
            if member.state is State.WAITING and member.is_now(Trial.PAUSED):
                self.waiting.append(member)  # it was put aside until there are workers for it
            elif member.state is State.WAITING:
                self.starts(member)
                started(member)
        for _ in range(min(_LOOKS, len(self._starting))):
            member = self._starting.popleft()
            if member.state is State.GOING and member.is_now(Trial.PENDING):
                self._starting.append(member)
            elif member.state is State.GOING and member.is_now(Trial.RUNNING):
                begun(member)
        for _ in range(min(_LOOKS, len(self._pausing))):
            member = self._pausing.popleft()
            if member.state is State.PAUSING and member.is_now(Trial.PAUSED):
                self.move(member, State.PAUSED)
                paused(member)
            elif member.state is State.PAUSING:
                self._pausing.append(member)

    def _count(self, member: Member, sign: int) -> None:
        if member.state in _COMING:
            self._towards[member.target] += sign
            if not self._towards[member.target]:
                del self._towards[member.target]
        if member.state is State.GOING:
            (self._going.add if sign > 0 else self._going.remove)((-member.target, member.trial_id))
