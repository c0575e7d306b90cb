"""Tune's controller, mended where that costs sweeps of gangs a trial or time."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

_KEPT_S: Final = 1.0
"""How long a reservation is kept for the next trial that asks for one like it."""


def mend(controller: Any) -> None:
    """Have Tune's controller handle the death of an actor once, and keep reservations that trials no longer need.

    An actor that is gone when Tune resets it for a trial fails twice, by the same error: as an actor, whose trial Tune
    queues again, and by its task, for which Tune then ends that trial as failed. Besides, Tune goes on to wait for the
    reset. A trial that waits has a placement group of its own requested, which Tune removes once the trial gets an
    idle actor; the next trial requests the same again. Nothing happens with a controller of another class. Read in
    2.43.0 and 2.60.0.
    """
    from ray.air.execution import PlacementGroupResourceManager
    from ray.tune.execution.tune_controller import TuneController

    inner = _bare(controller)
    if type(inner) is TuneController:
        once, keeping = _mended()
        inner.__class__ = once
        manager = inner._actor_manager._resource_manager
        if type(manager) is PlacementGroupResourceManager:
            manager.__class__ = keeping
            vars(manager)["kept"] = defaultdict(list)


def add_trial(controller: Any, trial: Any) -> None:
    """Add a trial now: Tune asks for another one only where none waits. Read in 2.43.0 and 2.60.0."""
    trial.init_local_path()  # its folder has no name before
    _bare(controller).add_trial(trial)


def put_aside(controller: Any, trial: Any) -> bool:
    """Let a pending trial of Tune's controller wait, without a reservation.

    Return whether it does: not one that is just being given an idle actor. Read in 2.43.0 and 2.60.0.
    """
    inner = _bare(controller)
    if trial in inner._resetting_trials:
        return False
    requested = inner._trial_to_actor.pop(trial, None)
    if requested is not None:
        inner._actor_to_trial.pop(requested)
        inner._remove_actor(tracked_actor=requested)
    if trial in inner._staged_trials:
        inner._unstage_trial_with_resources(trial)
    inner._set_trial_status(trial, "PAUSED")
    return True


def _bare(controller: Any) -> Any:
    """Return Tune's controller itself, also where a scheduler was given its wrapper."""
    return getattr(controller, "_tune_controller", controller)


@functools.cache
def _mended() -> tuple[Any, Any]:
    from ray.air.execution import PlacementGroupResourceManager
    from ray.tune.execution.tune_controller import TuneController

    class OnceController(TuneController):
        def _process_trial_failure(self, trial: Any, exception: Any) -> None:
            self._resetting_trials.discard(trial)
            if getattr(exception, "failed_trial", None) != trial.trial_id:
                exception.failed_trial = trial.trial_id  # no more than that: Tune pickles the exception
                super()._process_trial_failure(trial, exception)

    class KeepingResourceManager(PlacementGroupResourceManager):
        kept: dict[Any, list[float]]
        """When the kept placement groups of each request were no longer needed."""
        clock: Callable[[], float] = time.monotonic

        def request_resources(self, resource_request: Any) -> None:
            if self.kept[resource_request]:
                self.kept[resource_request].pop()
            else:
                super().request_resources(resource_request)

        def cancel_resource_request(self, resource_request: Any) -> None:
            self.kept[resource_request].append(self.clock())

        def get_resource_futures(self) -> list[Any]:  # in each step of Tune's
            for request, since in self.kept.items():
                while since and self.clock() - since[0] > _KEPT_S:
                    since.pop(0)
                    super().cancel_resource_request(request)
            return super().get_resource_futures()

        def clear(self) -> None:
            super().clear()  # type: ignore[no-untyped-call,unused-ignore]
            self.kept = defaultdict(list)

    return OnceController, KeepingResourceManager
