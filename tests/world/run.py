"""simulate(): a sweep on virtual time, with the scheduler and searcher of a live one."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler
from ray.tune.search import Searcher

from tests.world.actors import slots_of
from tests.world.cluster import Cluster
from tests.world.controller import SimController, StubTrial
from tests.world.costs import Costs
from tests.world.curves import Curves
from tests.world.result import Simulation, SimulationLog
from tests.world.world import Clock, World
from tunelight.errors import ResourceError
from tunelight.resources import reserve
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.choose import build_scheduler, judged_by
from tunelight.searchers import Repetitions, SweepSearch
from tunelight.settings import Settings, check_setting
from tunelight.settings.values import Folds


class CurveSearcher(Searcher):
    """Suggest the configurations of the curves."""

    def __init__(self, curves: Curves, seed: int) -> None:
        super().__init__(metric=curves.metric, mode=curves.mode)
        self._curves = curves
        self._seed = seed
        self._drawn = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the next configuration."""
        self._drawn += 1
        return self._curves.config(self._drawn - 1, self._seed)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn nothing."""


class SimSearch(SweepSearch):
    """The SearchAlgorithm of a sweep, with stubs for trials."""

    def __init__(self, curves: Curves, factory: Any, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._curves = curves
        self._factory = factory

    def _again(self, config: dict[str, Any], repetition: int) -> dict[str, Any]:
        again = getattr(self._curves, "again", None)
        return config if again is None else dict(again(config, repetition))

    def _make(self, trial_id: str, config: dict[str, Any]) -> Trial:
        return StubTrial(
            int(trial_id),
            self._curves,
            config=config,
            trial_id=trial_id,
            evaluated_params=config,
            experiment_tag=trial_id,
            placement_group_factory=self._factory,
        )


def simulate(
    curves: Curves,
    scheduler: str | Mapping[str, Any] | TrialScheduler | None = "asha",
    *,
    searcher: Searcher | None = None,
    num_samples: int = 100,
    repeats: int | Mapping[str, int] | Folds | None = None,
    workers: int | tuple[int, int] = 1,
    cluster: str = "1x8",
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
    max_epochs: int | None = None,
    seed: int = 0,
    costs: Costs | None = None,
    time_budget: float | str | None = None,
    max_concurrent: int | None = None,
    events: bool = False,
) -> Simulation:
    """Run a sweep on virtual time and return what it cost and found. Deterministic for a seed.

    Scheduler, searcher and Tune's controller are the real ones; gangs, nodes and time are simulated.

    Args:
        curves: what trials report.
        scheduler: as ``tunelight.run`` takes it; an object is copied. Its ``clock``, if it has one, is set.
        searcher: what suggests configurations, which ``curves`` knows; it is copied (None: those of the curves).
        num_samples: trials (100); if there are fewer curves, some are drawn again.
        repeats: as ``tunelight.run`` takes it (None). Curves recorded with several seeds are used in turn.
        workers: of a trial (1); (least, most) is a gang that a scheduler can resize.
        cluster: nodes x slots a node ("1x8"); a worker takes one slot.
        metric, mode: what is judged (what the curves say).
        max_epochs: where a trial ends by itself, and the scheduler's last rung (the curves' length).
        seed: of the order of configurations, of noise and of failures (0).
        costs: what things take (``Costs()``).
        time_budget: virtual seconds, or text as "2h", after which the sweep ends (None).
        max_concurrent: trials at once (None: as many as fit).
        events: keep a log of all that happened (False).

    Raises: subclasses of TunelightError. Runs on: driver, without Ray.
    """
    settings = Settings(
        metric=metric or curves.metric,
        mode=mode or curves.mode,
        num_samples=num_samples,
        repeats=check_setting("repeats", repeats),
        max_epochs=max_epochs or curves.epochs,
        scheduler=scheduler,
        workers=workers,
        seed=seed,
        time_budget=time_budget,
        max_concurrent=max_concurrent,
    )
    clock = Clock()
    built = build_scheduler(settings, clock=clock)
    world, factory = _world(settings, built, clock, cluster, costs or Costs(), keep_log=events)
    built.set_search_properties(**{"metric": None, "mode": None, **judged_by(built, settings)})
    log = SimulationLog(world)
    again = None if settings.repeats is None else Repetitions(settings.repeats, **settings.judged_by)
    search = SimSearch(
        curves,
        factory,
        CurveSearcher(curves, seed) if searcher is None else copy.deepcopy(searcher),
        settings.num_samples,
        max_concurrent=settings.max_concurrent,
        clock=world.clock,
        repeats=again,
        admit=built.admits,
    )
    controller = SimController(
        world,
        built,
        search_alg=search,
        ends_at=None if again is None else search.ends_at,
        reuse_actors=not isinstance(built.inner, ResourceChangingScheduler),
        time_budget_s=settings.budget_s,
        callbacks=[log],
    )
    with _quick():
        controller.simulate()
    return log.simulation(controller, () if again is None else again.standings())


def _world(
    settings: Settings,
    scheduler: GangScheduler,
    clock: Clock,
    cluster: str,
    costs: Costs,
    *,
    keep_log: bool,
) -> tuple[World, Any]:
    """Return the world, and each trial's placement group. Raises: ResourceError if that never fits."""
    reservation = reserve(settings.workers)
    max_workers = reservation.workers
    if reservation.least is not None and scheduler.resizes:
        reservation = reserve(reservation.least)
    factory = reservation.factory
    where = Cluster(*(int(part) for part in cluster.split("x")))
    if where.take(slots_of(factory)) is None:
        raise ResourceError(f"A trial of {reservation.workers} workers never fits a cluster of {cluster}.")
    where = Cluster(where.nodes, where.slots)
    world = World(
        where,
        costs,
        seed=settings.seed or 0,
        max_workers=max_workers,
        first_until=scheduler.initial_decision().until,
        **settings.judged_by,
        max_epochs=settings.max_epochs,
        keep_log=keep_log,
        clock=clock,
    )
    return world, factory


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Pause the garbage collector and silence Ray's loggers: a simulation makes many objects, and no cycles."""
    loggers = [logging.getLogger(name) for name in ("ray.tune.execution.tune_controller", "ray.tune")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
