"""The trials of a promoting scheduler, and the state of each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Any, Final

from ray.tune.experiment import Trial
from sortedcontainers import SortedList

from tunelight.compat.ray import cluster_size

# --- The resources that the trials of a sweep hold, counted here because Tune starts whatever is pending

_NAMES: Final = ("CPU", "GPU")


@dataclass(frozen=True, slots=True)
class TrialResources:
    """The reservation of a trial: CPUs and GPUs in ``total`` and ``per_worker``, for its ``workers``."""

    workers: int
    total: tuple[float, ...]
    per_worker: tuple[float, ...]

    @classmethod
    def of(cls, trial: Any) -> TrialResources | None:
        """Return what a trial reserves; None if it does not say."""
        factory = getattr(trial, "placement_group_factory", None)
        if factory is None:
            return None
        bundles = factory.bundles
        head = len(bundles) > 1 and not factory.head_bundle_is_empty
        total = tuple(sum(bundle.get(name, 0.0) for bundle in bundles) for name in _NAMES)
        return cls(len(bundles) - head, total, tuple(bundles[-1].get(name, 0.0) for name in _NAMES))


class Ledger:
    """Counts the CPUs and GPUs that trials hold against those of the cluster; Tune does not report other resources.

    If the cluster's size is unknown, everything fits and nothing is free.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, ...]] = {}
        self._used: tuple[float, ...] = (0.0,) * len(_NAMES)
        self.capacity: tuple[float, ...] | None = None
        self.kept_cpus = 0.0
        """CPUs that trials must not use: a sweep's datasets are preprocessed on them."""

    def update_capacity(self, tune_controller: Any) -> None:
        """Update the size of the cluster from Tune."""
        cpus, gpus = cluster_size(tune_controller) or (0.0, 0.0)
        size = (max(0.0, cpus - self.kept_cpus), gpus)
        self.capacity = size if any(size) else None

    def hold(self, trial_id: str, resources: TrialResources | None, workers: int = 0) -> None:
        """Note that a trial holds its reservation, with ``workers`` in all where that is more."""
        if resources is not None:
            self.release(trial_id)
            extra = max(workers - resources.workers, 0)
            each = zip(resources.total, resources.per_worker, strict=True)
            self._held[trial_id] = tuple(total + extra * per_worker for total, per_worker in each)
            self._used = tuple(map(sum, zip(self._used, self._held[trial_id], strict=True)))

    def release(self, trial_id: str) -> None:
        """Note that a trial has released its resources."""
        released = self._held.pop(trial_id, (0.0,) * len(_NAMES))
        left = zip(self._used, released, strict=True)
        self._used = tuple(used - less if self._held else 0.0 for used, less in left)  # 0: without rounding errors

    def fits(self, resources: TrialResources | None) -> bool:
        """Tell whether there is room for one more trial."""
        if resources is None or self.capacity is None:
            return True
        amounts = zip(self._used, resources.total, self.capacity, strict=True)
        return all(used + more <= capacity + 1e-6 for used, more, capacity in amounts)

    def free(self, resources: TrialResources | None) -> int:
        """Return how many more single workers fit."""
        return self._count(resources, self._used)

    def total(self, resources: TrialResources | None) -> int:
        """Return how many workers would fit in the empty cluster."""
        return self._count(resources, (0.0,) * len(_NAMES))

    def _count(self, resources: TrialResources | None, used: tuple[float, ...]) -> int:
        if resources is None or self.capacity is None or not any(resources.per_worker):
            return 0
        amounts = zip(self.capacity, used, resources.per_worker, strict=True)
        return max(int(min((capacity - taken + 1e-6) // each for capacity, taken, each in amounts if each)), 0)


# --- The speed of gangs by their size, and the cost of a resize, learned from trials' reports -------------

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
