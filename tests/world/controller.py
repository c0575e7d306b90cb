"""Ray Tune's TuneController over simulated gangs, so that its steps come in the same order as in a live sweep.

Overridden is what would leave the process (files, Ray, the wall clock), and what would make ten thousand trials slow.
``tests/unit/world/test_conformance.py`` compares it with the class as Ray ships it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray.tune import Stopper
from ray.tune.execution.tune_controller import TuneController, _FutureTrainingResult
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tests.world.actors import Actors
from tests.world.curves import Curves
from tests.world.sim_gang import Saved, SimGang
from tests.world.world import World
from tunelight.compat.ray import TRAINING_ITERATION, TRIAL_ID
from tunelight.errors import TunelightError
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.wrapper import SweepScheduler

_PATIENCE = 100
"""How many steps in a row may pass without an event."""
_TICK_S = 0.1
"""How long Tune waits for an event in a step."""


# Ray's types name Ray's actors and results, in whose places there are others here.
_Trial: Any = Trial
_Future: Any = _FutureTrainingResult
_Controller: Any = TuneController


class StubTrial(_Trial):  # type: ignore[misc]
    """A trial without files, trainable or Ray actor. Its hash is its number, so that sets have a fixed order."""

    def __init__(self, number: int, curves: Curves, **given: Any) -> None:
        super().__init__("simulated", stub=True, **given)
        self.order_of_birth = number
        self.place = number
        self.gang: SimGang | None = None
        self.reported = 0
        self.trained_s = 0.0  # with starts and resizes, as Tune counts them
        self.seconds = 0.0  # of training alone
        self.ended_s: float | None = None
        self._curves = curves
        self.curve = curves.curve(self.config)

    def __hash__(self) -> int:
        return self.order_of_birth

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def local_path(self) -> None:
        """None: there is no folder."""

    @property
    def last_result(self) -> dict[str, Any]:
        """The last report."""
        result: dict[str, Any] = self.run_metadata.last_result or {TRIAL_ID: self.trial_id}
        return result

    def init_local_path(self) -> None:
        """Create no folder."""

    def set_ray_actor(self, ray_actor: SimGang | None) -> None:
        """Set the trial's gang, as its actor."""
        self.temporary_state.ray_actor = ray_actor

    def update_last_result(self, result: dict[str, Any]) -> None:
        """Keep the last report, without Tune's running means, which are not used here."""
        self.run_metadata.last_result = result

    def set_config(self, config: dict[str, Any]) -> None:
        """Set another configuration, with its curve, as population-based training does."""
        self.config = config
        self.curve = self._curves.curve(config)

    def on_checkpoint(self, checkpoint_result: Saved) -> None:
        """Keep the newest one, where Tune looks for it."""
        self.run_metadata.checkpoint_manager._latest_checkpoint_result = checkpoint_result

    def invalidate_json_state(self) -> None:
        """Do nothing: no state is written."""


class LoggedScheduler(SweepScheduler):
    """Logs what the scheduler is told, and chooses trials in place of FIFO.

    ``FIFOScheduler.choose_trial_to_run`` goes through all trials at each step; the controller knows the first pending,
    or else paused, one without that.
    """

    def __init__(self, scheduler: GangScheduler, log: Callable[..., None], **given: Any) -> None:
        super().__init__(scheduler, **given)
        self._log = log
        self._places = 0
        own: Any = scheduler.choose_trial_to_run
        self._first_come = getattr(own, "__func__", None) is FIFOScheduler.choose_trial_to_run and self._ends_at is None

    def on_trial_add(self, tune_controller: Any, trial: StubTrial) -> None:
        """Give the trial a place in the queue, also a new one after a failure."""
        trial.place = self._places
        self._places += 1
        self._log("add", trial)
        super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: StubTrial, result: dict[str, Any]) -> str:
        """Get a decision."""
        decision = super().on_trial_result(tune_controller, trial, result)
        self._log("result", trial, (result.get(TRAINING_ITERATION), decision))
        return decision

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Choose the trial that runs next."""
        if not self._first_come:
            return super().choose_trial_to_run(tune_controller)
        controller = tune_controller._tune_controller
        waiting = controller._pending_trials or controller._paused_trials
        return min(waiting, key=lambda trial: trial.place) if waiting else None


class _Saving(_Future):  # type: ignore[misc]
    """A checkpoint that is being written, but can be had at once."""

    def __init__(self, saved: Saved) -> None:
        super().__init__(None)
        self._saved = saved

    def resolve(self, block: bool = True) -> Saved:
        """Return it."""
        return self._saved


class _TimeIsUp(Stopper):
    def __init__(self, world: World, budget_s: float | None) -> None:
        self._world = world
        self._budget_s = budget_s

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._budget_s is not None and self._world.clock.now >= self._budget_s


class SimController(_Controller):  # type: ignore[misc]
    """TuneController on virtual time."""

    def __init__(
        self,
        world: World,
        scheduler: GangScheduler,
        *,
        ends_at: Callable[[str], float | None] | None,
        time_budget_s: float | None,
        **given: Any,
    ) -> None:
        self.world = world
        self.logged = LoggedScheduler(scheduler, world.log, ends_at=ends_at)
        stopper = _TimeIsUp(world, time_budget_s)
        super().__init__(scheduler=self.logged, stopper=stopper, resource_manager_factory=lambda: None, **given)
        self._actor_manager = Actors(world)
        size = world.cluster.size
        self._resource_updater = SimpleNamespace(
            get_num_cpus=lambda: size,
            get_num_gpus=lambda: 0,
            update_avail_resources=lambda *_, **__: None,
        )
        self._wrapper = super()._wrapped()
        self._print_trial_errors = False
        self._max_pending_trials = 1
        if time_budget_s is not None:
            world.clock.after(time_budget_s, lambda: None)

    def simulate(self) -> None:
        """Run until all trials have ended. Raises: TunelightError if nothing happens any more."""
        idle, clock = 0, self.world.clock
        while not self.is_finished():
            before = clock.happened
            self._actor_manager.patient = idle < _PATIENCE // 2 and not (self._running_trials or self._pending_trials)
            self.step()
            idle = 0 if clock.happened > before else idle + 1
            if idle > _PATIENCE:
                raise TunelightError(
                    f"The simulation stands still at {clock.now:.1f} s: {len(self._pending_trials)} trials wait for "
                    f"slots ({self.world.cluster.free} of {self.world.cluster.size} are free), "
                    f"{len(self._paused_trials)} are paused, none runs, and {type(self.logged.inner).__name__} chooses "
                    "none. A live sweep would hang here."
                )
            if idle:  # Tune's steps go on without an event
                clock.now += _TICK_S

    # -- overridden: what would leave the process

    def _create_checkpoint_manager(self) -> Any:
        return SimpleNamespace(on_trial_checkpoint=lambda _: None)

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        """Write nothing."""

    def _mark_trial_to_checkpoint(self, trial: Trial) -> None:
        pass

    def _validate_result_metrics(self, result: dict[str, Any]) -> None:
        pass

    def _cleanup_stopping_actors(self, force_all: bool = False) -> None:
        pass

    def _wrapped(self) -> Any:
        return self._wrapper if hasattr(self, "_wrapper") else super()._wrapped()

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 600) -> bool:
        """Get a trial from the search. Tune would sleep if none came while nothing ran; ``simulate`` goes on."""
        trial = self._search_alg.next_trial()
        if trial is not None:
            self.add_trial(trial)
        return trial is not None

    def _schedule_trial_actor(self, trial: StubTrial) -> None:
        if self._maybe_reuse_cached_actor(trial):
            return
        gang = self._actor_manager.add_actor(
            cls=None,
            kwargs={"trial": trial},
            resource_request=trial.placement_group_factory,
            on_start=self._actor_started,
            on_stop=self._actor_stopped,
            on_error=self._actor_failed,
        )
        self._trial_to_actor[trial] = gang
        self._actor_to_trial[gang] = trial

    def _schedule_trial_reset(self, trial: StubTrial, new_config: dict[str, Any], new_experiment_tag: str) -> None:
        trial.set_experiment_tag(new_experiment_tag)
        trial.set_config(new_config)
        self._resetting_trials.add(trial)
        self._schedule_trial_task(
            trial, "reset", args=(trial,), on_result=self._on_trial_reset, on_error=self._trial_task_failure
        )

    def _schedule_trial_save(self, trial: StubTrial, result: dict[str, Any] | None = None) -> Any:
        if trial not in self._trial_to_actor:
            return None
        saved = self._schedule_trial_task(
            trial, "save", on_result=self._on_saving_result, on_error=self._trial_task_failure, _return_future=True
        )
        trial.temporary_state.saving_to = _Saving(saved)
        return trial.temporary_state.saving_to

    # -- the account of slots

    def _set_trial_status(self, trial: StubTrial, status: str) -> None:
        before = trial.status
        super()._set_trial_status(trial, status)
        if before == status:
            return
        trial.ended_s = self.world.clock.now if trial.is_finished() else None
        if before == Trial.RUNNING and trial.gang is not None:
            trial.gang.use(False)
            trial.gang.release_growth()
            trial.gang = None
        elif status == Trial.RUNNING and (gang := self._trial_to_actor.get(trial)) is not None:
            trial.gang = gang
            gang.use(True)
