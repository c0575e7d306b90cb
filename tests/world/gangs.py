"""What a simulation has in place of Ray: a virtual clock, slots, gangs, and the manager that Tune starts them by."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.world.curves import Costs, Curves, uniform
from tunelight.compat.ray import DONE, RESULT_DUPLICATE, TRAINING_ITERATION
from tunelight.messages import RESULT_KEY, Resize
from tunelight.policies import Divergence

STATE, TASK = range(2)
"""The order of events at the same time, which is that of Ray's actor manager."""


Event = list[Any]
"""When, its kind, a number, and what is called (None: it was cancelled)."""


class Clock:
    """Virtual seconds since the start of a simulation, and the events to come; O(log n) per event.

    At the same time, actors' states come before tasks; then the first planned comes first.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[Event] = []
        self._serial = itertools.count()

    def __call__(self) -> float:
        """Return the virtual time."""
        return self.now

    def after(self, delay_s: float, call: Callable[[], Any], kind: int = TASK) -> Event:
        """Plan ``call`` for ``delay_s`` seconds from now (not before now)."""
        event: Event = [self.now + max(0.0, delay_s), kind, next(self._serial), call]
        heapq.heappush(self._queue, event)
        return event

    def step(self, within_s: float = math.inf) -> bool:
        """Move to the next event and call it; return False if there is none within ``within_s`` seconds."""
        while self._queue:
            time, _, _, call = self._queue[0]
            if call is not None and time > self.now + within_s:
                return False
            heapq.heappop(self._queue)
            if call is not None:
                self.now = time
                call()
                return True
        return False


class Use(NamedTuple):
    """From ``time`` on, gangs have ``held`` slots reserved, of which running trials use ``busy``."""

    time: float
    held: int
    busy: int


class Happened(NamedTuple):
    """One event in a simulation's log: a ``report`` (its number and value), or what a gang was told to ``decide``."""

    time: float
    what: str
    trial: str
    detail: Any


@dataclass
class World:
    """What all parts of one simulation share.

    Attributes:
        curves: what trials report, and are judged by.
        slots: of the cluster; a worker takes one. On which nodes they are makes no difference to a gang.
        max_epochs: where a trial ends by itself.
        max_workers: how many logical workers a trial has (decision 0004).
        first_until: the first report whose answer is awaited.
        usage: slots held and in use, from each ``time`` on.
        growing: gangs that wait for slots to grow, in the order of their requests.
    """

    curves: Curves
    slots: int
    costs: Costs
    seed: int
    max_epochs: int
    max_workers: int
    first_until: int | None
    clock: Clock
    usage: list[Use] = field(default_factory=lambda: [Use(0.0, 0, 0)])
    happened: list[Happened] = field(default_factory=list)
    growing: dict[SimGang, None] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """How many slots no gang holds."""
        return self.slots - self.usage[-1].held

    def used(self, held: int = 0, busy: int = 0) -> None:
        """Record that slots were taken (or, if negative, given back) now."""
        if not held and not busy:
            return
        last = self.usage[-1]
        if last.time == self.clock.now:
            self.usage.pop()
        self.usage.append(Use(self.clock.now, last.held + held, last.busy + busy))

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best of the finite values, None of none."""
        finite = (value for value in values if value is not None and math.isfinite(value))
        return min(finite, default=None) if self.curves.mode == "min" else max(finite, default=None)


class SimGang:
    """A state machine with the interface of ``GangTrainable`` for Tune. As in an actor, tasks run one after another.

    Each task returns (seconds, value). The value is computed when the task begins, and takes effect by ``deliver`` when
    the task ends. A trial that is stopped during an epoch holds its gang to the end of the epoch.
    """

    def __init__(self, world: World, reserved: int, on_start: Callable[[Any], None], on_stop: Any) -> None:
        self.world = world
        self.trial: Any = None
        self.on_start: Callable[[Any], None] = on_start
        self.on_stop: Callable[[Any], None] | None = on_stop
        self.reserved = self.size = reserved
        """How many workers Tune reserved, and how many train."""
        self._arriving = 0
        """How many workers are starting, until ``_arrive_s``."""
        self._arrive_s = 0.0
        self.started = False
        self.free_at = 0.0
        self.in_use = False
        self.decide = SimpleNamespace(remote=self._decide)
        self.get_auto_filled_metrics = SimpleNamespace(remote=lambda **_: None)
        self._warm = False
        self._begin_trial()

    def set_on_stop(self, call: Callable[[Any], None] | None) -> None:
        """Set the callback for the end of the gang."""
        self.on_stop = call

    def set_on_error(self, call: Callable[[Any, Exception], None] | None) -> None:
        """Ignore the callback for the loss of the gang: none is lost."""

    def _begin_trial(self) -> None:
        self.number = 0
        self._until = self.world.first_until
        self._training = False
        self._asked = False
        self._target_workers: int | None = None
        self._resize_from = 0
        self._divergence = Divergence(self.world.curves.metric, self.world.curves.mode)

    # -- Tune's tasks: (seconds, value)

    def reset(self, *_: Any) -> tuple[float, Any]:
        """Take another trial."""
        self.release_growth()
        self._begin_trial()
        return 0.0, True

    def restore(self, saved: Any) -> tuple[float, Any]:
        """Go on from a checkpoint."""
        self.number = saved.checkpoint
        return self.world.costs.checkpoint_s, None

    def save(self) -> tuple[float, Any]:
        """Write a checkpoint of the last report, with the names of Tune's own."""
        saved = SimpleNamespace(checkpoint=self.number, metrics=dict(self.trial.last_result))
        return self.world.costs.checkpoint_s, saved

    def train(self) -> tuple[float, Any]:
        """Train to the next report, or to the end."""
        costs, world, curve = self.world.costs, self.world, self.trial.curve
        seconds = 0.0
        if not self._training:
            seconds = costs.start_warm_s if self._warm else costs.start_cold_s
            self._training = self._warm = True
        elif self._asked:
            seconds = costs.report_s
        if self.number >= world.max_epochs:
            self._training = False
            return costs.end_s, {RESULT_DUPLICATE: True, DONE: True}
        seconds += self._resize()
        number = self.number + 1
        draw = uniform(world.seed, self.trial.number, number) if costs.noise else 0.5
        epoch_s = costs.epoch_s(curve.seconds, self.size, max(world.max_workers, self.size), draw)
        metrics = curve.at(number)
        result: dict[str, Any] = {
            **metrics,
            TRAINING_ITERATION: number,
            "epoch": number - 1,
            "time_total_s": self.trial.trained_s + seconds + epoch_s,
            RESULT_KEY: {"workers": self.size},
        }
        if self._divergence.judge(number, metrics) is not None:
            self._training = False
            result |= {DONE: True, RESULT_KEY: {"workers": self.size, "error": {"state": "DIVERGED"}}}
        return seconds + epoch_s, result

    def deliver(self, value: Any) -> None:
        """Apply the value of a finished task, before Tune gets it."""
        if isinstance(value, dict) and TRAINING_ITERATION in value:
            number, trial, metric = value[TRAINING_ITERATION], self.trial, value[self.world.curves.metric]
            self.world.happened.append(Happened(self.world.clock.now, "report", trial.trial_id, (number, metric)))
            trial.best = self.world.best((trial.best, metric))
            self.number = trial.reports = number
            trial.trained_s = value["time_total_s"]
            self._asked = self._until is not None and number >= self._until
            if self._asked:
                self._until = number + 1

    # -- the scheduler's decisions

    def _decide(self, decision: Any) -> None:
        if hasattr(decision, "until"):  # Continue, and other decisions with the next report that needs an answer
            self._until = decision.until
        elif isinstance(decision, Resize):
            most = max(self.reserved, self.world.max_workers)
            self._target_workers = min(max(self.reserved, decision.workers), most)
            self._resize_from = self.number if self._asked else self.number + 1
            if self._arriving and self._arriving != self._missing:
                self.world.used(held=-self._arriving)
                self._arriving = 0
            if not self.grow():
                self.world.growing[self] = None
        self.world.happened.append(Happened(self.world.clock.now, "decide", self.trial.trial_id, decision))

    @property
    def _missing(self) -> int:
        """How many workers the gang lacks to its target size."""
        return max(0, (self._target_workers or 0) - self.size)

    def grow(self) -> bool:
        """Reserve the missing slots, all or none; return whether none is missing any more."""
        if self._missing and not self._arriving:
            if self._missing > self.world.free:
                return False
            self._arriving, self._arrive_s = self._missing, self.world.clock.now + self.world.costs.grow_s
            self.world.used(held=self._arriving)
        return True

    def _resize(self) -> float:
        """Change the size at this report, if that is due; return the seconds that it takes."""
        if self._target_workers is None or self.number < self._resize_from:
            return 0.0
        if self._target_workers < self.size:
            gone, self.size = self.size - self._target_workers, self._target_workers
            self.world.used(held=-gone, busy=-gone if self.in_use else 0)
            return self.world.costs.resize_s
        if self._arriving and self._arrive_s <= self.world.clock.now:
            self.size += self._arriving
            self.world.used(busy=self._arriving if self.in_use else 0)
            self._arriving = 0
            return self.world.costs.resize_s
        return 0.0

    # -- slots

    def use(self, in_use: bool) -> None:
        """Record whether a running trial uses the gang."""
        if in_use != self.in_use:
            self.in_use = in_use
            self.world.used(busy=self.size if in_use else -self.size)

    def release_growth(self) -> None:
        """Release all workers that came by growing, or are on their way."""
        self._target_workers = None
        self.world.growing.pop(self, None)
        grown = self.size - self.reserved
        self.world.used(held=-grown - self._arriving, busy=-grown if self.in_use else 0)
        self.size, self._arriving = self.reserved, 0

    def release(self) -> None:
        """Release all slots."""
        self.use(False)
        self.release_growth()
        self.world.used(held=-self.reserved)
        self.reserved = self.size = 0


class Actors:
    """The part of ``RayActorManager`` that TuneController uses, over simulated gangs.

    Reservations wait in the order of their requests, those of growing gangs after the others; one that cannot be placed
    does not delay a smaller one. ``next`` moves the clock. ``patient``: no trial runs or waits for a gang.
    """

    num_actor_tasks = 0

    def __init__(self, world: World, trials: Mapping[Any, Any]) -> None:
        self.world = world
        self.patient = False
        self.idle = 0
        """How often there was no event, the last times that Tune asked."""
        self._trials = trials
        self._live_actors_to_ray_actors_resources: dict[SimGang, tuple[SimGang, None]] = {}
        self._waiting: list[SimGang] = []
        self._events: dict[SimGang, list[Event]] = {}

    @property
    def num_pending_actors(self) -> int:
        """How many gangs wait for slots."""
        return len(self._waiting)

    @property
    def num_live_actors(self) -> int:
        """How many gangs are placed."""
        return len(self._live_actors_to_ray_actors_resources)

    def is_actor_started(self, tracked_actor: SimGang) -> bool:
        """Tell whether a gang is placed."""
        return tracked_actor in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, tracked_actor: SimGang) -> bool:
        """Say that none fails."""
        return False

    def next(self, timeout: float) -> bool:
        """Process the next event, and place gangs that now fit; return False if there is no event.

        While ``patient``, it must come within the timeout: Tune's next step may end paused trials.
        """
        self._place_waiting()
        happened = self.world.clock.step(timeout if self.patient else math.inf)
        if happened:
            self._place_waiting()
        self.idle = 0 if happened else self.idle + 1
        return happened

    def add_actor(  # noqa: PLR0917 - called by keyword
        self, cls: Any, kwargs: Any, resource_request: Any, on_start: Any, on_stop: Any, on_error: Any
    ) -> SimGang:
        """Request a gang: a slot for each GPU, else CPU, of its bundles."""
        cpus = [bundle.get("GPU") or bundle.get("CPU", 0) for bundle in resource_request.bundles]
        gang = SimGang(self.world, sum(map(math.ceil, cpus)), on_start, on_stop)
        self._waiting.append(gang)
        return gang

    def _place_waiting(self) -> None:
        """Place waiting gangs, and let gangs grow, as far as there is room."""
        for gang in list(self._waiting):
            if gang.reserved <= self.world.free:
                self._waiting.remove(gang)
                self._live_actors_to_ray_actors_resources[gang] = (gang, None)
                self.world.used(held=gang.reserved)
                self._plan(gang, self.world.costs.reserve_s, partial(self._started, gang), STATE)
        for gang in list(self.world.growing):
            if gang.grow():
                del self.world.growing[gang]

    def _started(self, gang: SimGang) -> None:
        gang.started = True
        gang.free_at = self.world.clock.now
        gang.on_start(gang)

    def schedule_actor_task(  # noqa: PLR0917 - Ray's order
        self,
        tracked_actor: SimGang,
        method_name: str,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        on_result: Callable[..., None] | None = None,
        on_error: Callable[..., None] | None = None,
        _return_future: bool = False,
    ) -> None:
        """Plan a task's result, after the gang's earlier tasks."""
        if method_name == "stop":
            return  # ``remove_actor`` comes next, and plans the end itself
        gang, now = tracked_actor, self.world.clock.now
        gang.trial = self._trials[gang]
        seconds, value = getattr(gang, method_name)(*args)
        gang.free_at = max(gang.free_at, now) + seconds

        def finished() -> None:
            gang.deliver(value)
            if on_result is not None:
                on_result(gang, value)

        self._plan(gang, gang.free_at - now, finished)

    def _plan(self, gang: SimGang, delay: float, call: Callable[[], None], kind: int = TASK) -> None:
        self._events.setdefault(gang, []).append(self.world.clock.after(delay, call, kind))

    def clear_actor_task_futures(self, tracked_actor: SimGang) -> None:
        """Drop the results of a gang's tasks."""
        for event in self._events.pop(tracked_actor, ()):
            event[-1] = None

    def remove_actor(self, tracked_actor: SimGang, kill: bool = False, stop_future: Any = None) -> bool:
        """End a gang after its current task; return True if a callback will report its end."""
        gang = tracked_actor
        if gang in self._waiting:
            self._waiting.remove(gang)
            return False
        if not gang.started:
            self.clear_actor_task_futures(gang)
            gang.on_stop = None
        gang.release_growth()
        self.world.clock.after(gang.free_at - self.world.clock.now, partial(self._stopped, gang), STATE)
        return True

    def _stopped(self, gang: SimGang) -> None:
        gang.release()
        del self._live_actors_to_ray_actors_resources[gang]
        if gang.on_stop is not None:
            gang.on_stop(gang)
