"""A stand-in for Ray's actor manager: simulated gangs in place of actors, on a virtual clock."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.world.sim_gang import SimGang
from tests.world.world import STATE, TASK, Event, World


def slots_of(request: Any) -> list[int]:
    """Return how many slots each bundle of a placement group takes: its GPUs, else its CPUs, rounded up."""
    bundles: Sequence[Mapping[str, float]] = request.bundles
    return [-int(-(bundle.get("GPU") or bundle.get("CPU", 0)) // 1) for bundle in bundles]


class Actors:
    """The part of ``RayActorManager`` that TuneController uses, over simulated gangs.

    Reservations wait in the order of their requests, those of growing gangs after the others; one that cannot be placed
    does not delay those of another shape. ``next`` moves the clock. ``patient``: no trial runs or waits for a gang.
    """

    num_actor_tasks = 0

    def __init__(self, world: World) -> None:
        self.world = world
        self.num_pending_actors = 0
        self._live_actors_to_ray_actors_resources: dict[SimGang, tuple[SimGang, None]] = {}
        self._pending: dict[Any, deque[SimGang]] = {}
        self._cancelled: set[SimGang] = set()
        self._tasks: dict[SimGang, list[Event]] = {}
        self._starting: dict[SimGang, Event] = {}
        self._asked = False
        self.patient = False
        self._serials = itertools.count()

    # -- queries of TuneController

    @property
    def num_live_actors(self) -> int:
        """How many gangs are placed."""
        return len(self._live_actors_to_ray_actors_resources)

    def get_live_actors_resources(self) -> dict[str, float]:
        """Return the resources that all gangs hold."""
        return {"CPU": float(self.world.usage[-1].held)}

    def is_actor_started(self, gang: SimGang) -> bool:
        """Tell whether a gang is placed."""
        return gang in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, gang: SimGang) -> bool:
        """Say that none fails."""
        return False

    def next(self, timeout: float | None = None) -> bool:
        """Process the next event, and place gangs that now fit; return False if there is no event.

        While ``patient``, it must come within the timeout: Tune's next step may end paused trials.
        """
        self.start_waiting()
        happened = self.world.clock.step(timeout if self.patient and timeout is not None else math.inf)
        if happened:
            self.start_waiting()
        return happened

    # -- gangs come and go

    def add_actor(
        self,
        cls: Any,
        kwargs: Mapping[str, Any],
        resource_request: Any,
        *,
        on_start: Callable[[Any], None] | None = None,
        on_stop: Callable[[Any], None] | None = None,
        on_error: Callable[[Any, Exception], None] | None = None,
    ) -> SimGang:
        """Request a gang."""
        gang = SimGang(self.world, next(self._serials), kwargs["trial"], slots_of(resource_request))
        gang.on_start, gang.on_stop = on_start, on_stop
        self._pending.setdefault(resource_request, deque()).append(gang)
        self.num_pending_actors += 1
        self._asked = True
        return gang

    def start_waiting(self) -> None:
        """Place waiting gangs as far as there is room; does nothing if no slots became free."""
        if not (self._asked or self.world.cluster.freed):
            return
        self._asked = self.world.cluster.freed = False
        for request in list(self._pending):
            waiting = self._pending[request]
            while waiting:
                if waiting[0] in self._cancelled:
                    self._cancelled.discard(waiting.popleft())
                    continue
                bundles = self.world.cluster.take(waiting[0].demands)
                if bundles is None:
                    break
                self._place(waiting.popleft(), bundles)
            if not waiting:
                del self._pending[request]
        for gang in list(self.world.growing):
            if gang.grow():
                del self.world.growing[gang]

    def _place(self, gang: SimGang, bundles: list[Any]) -> None:
        gang.bundles = bundles
        self.num_pending_actors -= 1
        self._live_actors_to_ray_actors_resources[gang] = (gang, None)
        self.world.used(held=gang.held)
        self._starting[gang] = self.world.clock.after(self.world.costs.reserve_s, lambda: self._started(gang), STATE)

    def _started(self, gang: SimGang) -> None:
        del self._starting[gang]
        gang.started = True
        gang.free_at = self.world.clock.now
        if gang.on_start is not None:
            gang.on_start(gang)

    def remove_actor(self, gang: SimGang, kill: bool = False, stop_future: Any = None) -> bool:
        """End a gang after its current task; return True if a callback will report its end."""
        if gang not in self._live_actors_to_ray_actors_resources:
            self._cancelled.add(gang)
            self.num_pending_actors -= 1
            return False
        if (start := self._starting.pop(gang, None)) is not None:
            start.cancel()
            gang.on_start = gang.on_stop = None
        now = self.world.clock.now
        seconds, _ = gang.stop()
        self._plan(gang, max(gang.free_at, now) + seconds - now, lambda: self._stopped(gang), STATE)
        return True

    def _stopped(self, gang: SimGang) -> None:
        gang.release()
        del self._live_actors_to_ray_actors_resources[gang]
        if gang.on_stop is not None:
            gang.on_stop(gang)

    # -- tasks

    def schedule_actor_task(  # noqa: PLR0917 - Ray's order
        self,
        tracked_actor: SimGang,
        method_name: str,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        on_result: Callable[..., None] | None = None,
        on_error: Callable[..., None] | None = None,
        _return_future: bool = False,
    ) -> Any:
        """Plan a task's result, after the gang's earlier tasks."""
        if method_name == "stop":
            return None  # ``remove_actor`` comes next, and plans the end itself
        gang = tracked_actor
        now = self.world.clock.now
        seconds, value = getattr(gang, method_name)(*args)
        gang.free_at = max(gang.free_at, now) + seconds

        def finished() -> None:
            gang.deliver(value)
            if on_result is not None:
                on_result(gang, value)

        self._plan(gang, gang.free_at - now, finished)
        return value if _return_future else None

    def _plan(self, gang: SimGang, delay: float, call: Callable[[], None], kind: int = TASK) -> None:
        event = self.world.clock.after(delay, call, kind)
        self._tasks[gang] = [*(one for one in self._tasks.get(gang, ()) if one.call is not None), event]

    def clear_actor_task_futures(self, tracked_actor: SimGang) -> None:
        """Drop the results of a gang's tasks."""
        for event in self._tasks.pop(tracked_actor, ()):
            event.cancel()
