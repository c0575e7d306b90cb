"""simulate(): a sweep on virtual time, with Tune's controller and the scheduler and searcher of a live one."""

from __future__ import annotations

import copy
import gc
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from ray.tune import Trainable
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler, TrialScheduler
from ray.tune.search import Searcher

from tests.kit.recording import Book
from tests.world.curves import Costs, Curves
from tests.world.gangs import Actors, Clock, Use, World
from tunelight.errors import TunelightError
from tunelight.record import FAILED, Standing, repeated
from tunelight.resources import reserve
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.choose import build_scheduler, judged_by
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.settings import Settings, check_setting
from tunelight.settings.values import Folds
from tunelight.sweep.queue import SweepSearch, SweepTrial

_PATIENCE = 100
"""How many steps in a row may pass without an event."""
_TICK_S = 0.1
"""How long Tune waits for an event in a step."""
_NOWHERE: Any = SimpleNamespace(
    trial_dir_name="-", trial_fs_path="", trial_driver_staging_path="-", experiment_dir_name="-"
)
"""The storage of trials that have no folder."""

# Ray's types name Ray's actors, in whose places there are gangs here.
_SweepTrial: Any = SweepTrial
_Controller: Any = TuneController


class SimTrial(_SweepTrial):  # type: ignore[misc]
    """A sweep's trial with a curve and no folder; times in virtual seconds, None if they were never reached.

    Its hash is its number, so that sets have a fixed order.
    """

    classes: ClassVar[dict[str, Any]] = {"simulated": Trainable}

    def __init__(self, world: World, trial_id: str, config: dict[str, Any], reservation: Any) -> None:
        self.number = int(trial_id)
        super().__init__(
            "simulated", stub=True, config=config, trial_id=trial_id, evaluated_params=config,
            placement_group_factory=reservation, storage=_NOWHERE,
        )  # fmt: skip
        self.relative_logdir = "-"
        self.curve = world.curves.curve(config)
        self.reports = 0
        self.state = ""
        """How it ended, as a record would have it."""
        self.best: float | None = None
        self.trained_s = 0.0  # with starts and resizes, as Tune counts them
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self._world = world
        self._gang: Any = None

    def __hash__(self) -> int:
        return self.number

    def set_status(self, status: str) -> None:
        """Set the status, and account for the slots of a gang that is used from now on, or no more."""
        super().set_status(status)
        if self._gang is not None:
            self._gang.use(False)
            self._gang.release_growth()
            self._gang = None
        if status == Trial.RUNNING:
            self._gang = self.temporary_state.ray_actor
            self._gang.use(True)
            if self.started_s is None:
                self.started_s = self._world.clock.now
        self.ended_s = self._world.clock.now if self.is_finished() else None

    def on_checkpoint(self, checkpoint_result: Any) -> None:
        """Keep the newest one, where Tune looks for it."""
        self.run_metadata.checkpoint_manager._latest_checkpoint_result = checkpoint_result


class SimSearch(SweepSearch):
    """The SearchAlgorithm of a sweep, whose trials have curves."""

    def __init__(self, world: World, *given: Any, **more: Any) -> None:
        super().__init__(*given, clock=world.clock, **more)
        self._world = world

    def _begin(self, config: dict[str, Any], **kind: Any) -> Trial:
        again = getattr(self._world.curves, "again", None)
        if again is not None and "repetition" in kind:
            config = dict(again(config, kind["repetition"]))
        return super()._begin(config, **kind)

    def _make(self, trial_id: str, config: dict[str, Any]) -> Trial:
        return SimTrial(self._world, trial_id, config, self._reservation)


class FirstCome(SweepScheduler):
    """Chooses trials in place of FIFO, which would go through all of them at each of Tune's steps."""

    repeats = False
    """Whether the best are trained again."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Choose the first pending, or else paused, trial."""
        own: Any = self.scheduler.choose_trial_to_run
        if self.repeats or getattr(own, "__func__", None) is not FIFOScheduler.choose_trial_to_run:
            return super().choose_trial_to_run(tune_controller)
        controller = tune_controller._tune_controller
        waiting = controller._pending_trials or controller._paused_trials
        return min(waiting, key=lambda trial: trial.number, default=None)


class SimController(_Controller):  # type: ignore[misc]
    """TuneController on virtual time: overridden is only what would write files, or wait by the wall clock."""

    def __init__(self, world: World, **given: Any) -> None:
        super().__init__(resource_manager_factory=lambda: None, **given)
        self.world = world
        self._actor_manager = Actors(world, self._actor_to_trial)
        self._resource_updater = SimpleNamespace(
            get_num_cpus=lambda: world.slots, get_num_gpus=lambda: 0, update_avail_resources=lambda *_, **__: None
        )
        wrapped = super()._wrapped()
        self._wrapped = lambda: wrapped
        self._actor_cleanup_timeout = math.inf
        self._max_pending_trials = 1

    def simulate(self) -> None:
        """Run until all trials have ended. Raises: TunelightError if nothing happens any more."""
        clock, actors = self.world.clock, self._actor_manager
        while not self.is_finished():
            actors.patient = actors.idle < _PATIENCE // 2 and not (self._running_trials or self._pending_trials)
            self.step()
            if actors.idle > _PATIENCE:
                raise TunelightError(f"The simulation stands still at {clock.now:.1f} s, as a live sweep would.")
            if actors.idle:  # Tune's steps go on without an event
                clock.now += _TICK_S

    def _create_checkpoint_manager(self) -> Any:
        return SimpleNamespace(on_trial_checkpoint=lambda _: None)

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        """Write nothing."""

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 600) -> bool:
        """Get a trial from the search. Tune would sleep if none came while nothing ran; ``simulate`` goes on."""
        return bool(super()._update_trial_queue(blocking=False))


@dataclass(frozen=True)
class Simulation:
    """The cost and the findings of a simulated sweep, in virtual time.

    Args:
        world: with the slots that were held when, and the log.
        trials: in order of birth.
        repeated: as ``SweepResults.repeated()`` returns it.
    """

    world: World
    trials: Sequence[SimTrial]
    repeated: Sequence[Standing] = ()

    @property
    def makespan_s(self) -> float:
        """From the start to the end of the last trial."""
        return max((trial.ended_s for trial in self.trials if trial.ended_s is not None), default=0.0)

    @property
    def worker_seconds(self) -> float:
        """Slots times the seconds that gangs held them, including idle gangs."""
        return self._slot_seconds("held", 0.0)

    @property
    def best(self) -> float | None:
        """The best reported value."""
        return self.world.best(trial.best for trial in self.trials)

    @property
    def chosen(self) -> SimTrial:
        """The trial of the search whose configuration a sweep would choose: by its mean, where some were repeated."""
        if self.repeated and self.repeated[0].again and math.isfinite(self.repeated[0].mean):
            return next(trial for trial in self.trials if trial.trial_id == self.repeated[0].trial)
        judged = [trial for trial in self.trials if trial.state not in FAILED]
        best = self.world.best(trial.best for trial in judged)
        return next(trial for trial in judged if trial.best == best)

    @property
    def tail_idle_share(self) -> float:
        """The share of all slots' time after the last new trial's start in which no running trial used them."""
        start_s = max((trial.started_s for trial in self.trials if trial.started_s is not None), default=0.0)
        span = self.makespan_s - start_s
        return 1 - self._slot_seconds("busy", start_s) / (self.world.slots * span) if span > 0 else 0.0

    def regret(self) -> float:
        """Return the distance of the best value from the best one of all trials' complete curves."""
        metrics = {id(trial.curve): trial.curve.metrics[self.world.curves.metric] for trial in self.trials}.values()
        oracle = self.world.best(value for values in metrics for value in values[: self.world.max_epochs])
        return math.inf if self.best is None or oracle is None else abs(self.best - oracle)

    def _slot_seconds(self, what: str, start_s: float) -> float:
        """Return the slot-seconds that were ``held``, or ``busy``, from a moment to the end."""
        end_s, usage, total = self.makespan_s, self.world.usage, 0.0
        for use, following in zip(usage, [*usage[1:], Use(end_s, 0, 0)], strict=True):
            span = min(following.time, end_s) - max(use.time, start_s)
            total += getattr(use, what) * max(0.0, span)
        return total


def simulate(
    curves: Curves,
    scheduler: str | Mapping[str, Any] | TrialScheduler = "asha",
    *,
    searcher: Searcher | None = None,
    num_samples: int = 100,
    repeats: int | Mapping[str, int] | Folds | None = None,
    workers: int | tuple[int, int] = 1,
    slots: int = 8,
    max_epochs: int | None = None,
    seed: int = 0,
    costs: Costs | None = None,
    time_budget: float | str | None = None,
    max_concurrent: int | None = None,
) -> Simulation:
    """Run a sweep on virtual time and return what it cost and found. Deterministic for a seed.

    Scheduler, searcher and Tune's controller are the real ones; gangs, slots and time are simulated.

    Args:
        curves: what trials report, and are judged by.
        scheduler: as ``tunelight.run`` takes it; an object is copied. Its ``clock``, if it has one, is set.
        searcher: what suggests configurations, which ``curves`` knows; it is copied (None: those of the curves).
        num_samples: trials (100); if there are fewer curves, some are drawn again.
        repeats: as ``tunelight.run`` takes it (None). Curves recorded with several seeds are used in turn.
        workers: of a trial (1); (least, most) is a gang that a scheduler can resize.
        slots: of the cluster (8); a worker takes one.
        max_epochs: where a trial ends by itself, and the scheduler's last rung (the curves' length).
        seed: of the order of configurations and of noise (0).
        costs: what things take (``Costs()``).
        time_budget: virtual seconds, or text as "2h", after which the sweep ends (None).
        max_concurrent: trials at once (None: as many as fit).

    Raises: subclasses of TunelightError. Runs on: driver, without Ray.
    """
    settings = Settings(
        metric=curves.metric, mode=curves.mode, num_samples=num_samples, repeats=check_setting("repeats", repeats),
        max_epochs=max_epochs or curves.epochs, scheduler=scheduler, workers=workers, seed=seed,
        time_budget=time_budget,
    )  # fmt: skip
    clock = Clock()
    built: GangScheduler = build_scheduler(settings, clock=clock)
    built.set_search_properties(**{"metric": None, "mode": None, **judged_by(built, settings)})
    reservation = reserve(settings.workers)
    until, epochs = built.initial_decision().until, max_epochs or curves.epochs
    world = World(curves, slots, costs or Costs(), seed, epochs, reservation.workers, until, clock)
    if reservation.least is not None and built.resizes:
        reservation = reserve(reservation.least)
    book = Book(clock, **settings.recorded)
    search = SimSearch(
        world, book, copy.deepcopy(searcher) if searcher else Searcher(), num_samples,
        [] if searcher else [curves.config(number, seed) for number in range(num_samples)],
        max_concurrent=max_concurrent, repeats=settings.repeats, admit=built.admits, reservation=reservation.factory,
    )  # fmt: skip
    chooses = FirstCome(built, search)
    chooses.repeats = settings.repeats is not None
    controller = SimController(
        world,
        search_alg=search,
        scheduler=chooses,
        callbacks=[book],
        reuse_actors=not isinstance(built.inner, ResourceChangingScheduler),
    )
    if settings.budget_s is not None:
        clock.after(settings.budget_s, controller.request_stop_experiment)
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    gc.disable()  # a simulation makes many objects, and no cycles
    try:
        controller.simulate()
    finally:
        gc.enable()
        logger.setLevel(level)
    book.close()
    for trial in controller.get_trials():
        trial.state = book.state.trials[trial.trial_id].state
    return Simulation(world, controller.get_trials(), repeated(book.state))
