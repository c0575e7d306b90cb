"""The simulator against TuneController as Ray ships it: the same trials, the same order of everything, the same times.

The controller here is Ray's own class, unchanged, with real trials, a real storage folder and a trainable that is
registered. Only its actor manager is replaced, by one that knows none of the simulator's parts.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import Checkpoint
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune import Callback, PlacementGroupFactory, Trainable
from ray.tune.execution import tune_controller
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.registry import register_trainable
from ray.tune.result import DONE, RESULT_DUPLICATE
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

from tests.curves import tiny_table
from tests.world import Costs, simulate
from tests.world.run import CurveSearcher
from tunelight.schedulers import ASHA, ElasticASHA
from tunelight.schedulers.base import SweepFacts, adapted
from tunelight.searchers import SweepSearch

TRIALS, EPOCHS, WORKERS = 50, 27, 2
CURVES = tiny_table(epochs=EPOCHS)
COSTS = Costs(reserve_s=0.3, start_cold_s=3.1, start_warm_s=0.2, end_s=0.05, stop_s=0.4, checkpoint_mb=20)


class Pair(Trainable):
    """Never started: what the controller asks of a trainable's class."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        return PlacementGroupFactory([{}, *[{"CPU": 1.0}] * WORKERS])


class PlainActor:
    """One gang, written down as plainly as can be: what it has trained, and until when it is busy."""

    def __init__(self, number: int, world: PlainManager, on_start: Any, on_stop: Any, on_error: Any) -> None:
        self.number, self.world = number, world
        self.on_start, self.on_stop, self.on_error = on_start, on_stop, on_error
        self.busy_until = 0.0
        self.warm = self.training = self.live = False
        self.done = 0
        self.get_auto_filled_metrics = SimpleNamespace(remote=lambda **_: None)

    def set_on_stop(self, call: Any) -> None:
        self.on_stop = call

    def set_on_error(self, call: Any) -> None:
        self.on_error = call

    def work(self, method: str, args: tuple[Any, ...]) -> tuple[float, Any]:
        trial = self.world.trial_of(self)
        if method == "reset":
            self.done, self.training = 0, False
            return 0.0, True
        if method == "restore":
            self.done = args[0].metrics["training_iteration"]
            return COSTS.checkpoint_s, None
        if method == "save":
            return COSTS.checkpoint_s, _TrainingResult(Checkpoint("/nowhere"), dict(trial.last_result))
        assert method == "train"
        seconds = 0.0 if self.training else COSTS.start_warm_s if self.warm else COSTS.start_cold_s
        self.training = self.warm = True
        if self.done >= EPOCHS:
            self.training = False
            return COSTS.end_s, {RESULT_DUPLICATE: True, DONE: True}
        curve = CURVES.curve(trial.config)
        seconds += curve.seconds / WORKERS
        self.done += 1
        told = {"training_iteration": self.done, "time_total_s": 0.0}
        return seconds, {**curve.at(self.done), **told}


class PlainManager:
    """Instead of RayActorManager: a list that is searched for the earliest, and a number of free slots."""

    num_actor_tasks = 0

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.now = 0.0
        self.waiting: list[PlainActor] = []
        self.coming: list[tuple[float, int, int, PlainActor, str, Any]] = []
        self.count = itertools.count()
        self.trial_of: Any = None
        self._live_actors_to_ray_actors_resources: dict[PlainActor, Any] = {}

    @property
    def num_pending_actors(self) -> int:
        return len(self.waiting)

    @property
    def num_live_actors(self) -> int:
        return len(self._live_actors_to_ray_actors_resources)

    def is_actor_started(self, actor: PlainActor) -> bool:
        return actor in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, actor: PlainActor) -> bool:
        return False

    def get_live_actors_resources(self) -> dict[str, float]:
        return {}

    def add_actor(  # noqa: PLR0917 - called by keyword
        self, cls: Any, kwargs: Any, resource_request: Any, on_start: Any, on_stop: Any, on_error: Any
    ) -> PlainActor:
        self.waiting.append(PlainActor(next(self.count), self, on_start, on_stop, on_error))
        return self.waiting[-1]

    def start(self) -> None:
        while self.waiting and self.free >= WORKERS:
            actor = self.waiting.pop(0)
            self.free -= WORKERS
            self._live_actors_to_ray_actors_resources[actor] = (actor, None)
            self.come(COSTS.reserve_s, 1, actor, "start", None)

    def come(self, delay: float, kind: int, actor: PlainActor, what: str, call: Any) -> None:
        self.coming.append((self.now + delay, kind, next(self.count), actor, what, call))

    def next(self, timeout: float | None = None) -> bool:
        self.start()
        if not self.coming:
            self.now += timeout or 0.0
            return False
        first = min(self.coming, key=lambda one: one[:3])
        if timeout is not None and first[0] > self.now + timeout:
            self.now += timeout  # as Ray's: it comes back without an event, and Tune takes its next step
            return False
        self.coming.remove(first)
        self.now, _, _, actor, what, call = first
        if what == "start":
            actor.live, actor.busy_until = True, self.now
            actor.on_start(actor)
        elif what == "stop":
            self.free += WORKERS
            del self._live_actors_to_ray_actors_resources[actor]
            if actor.on_stop is not None:
                actor.on_stop(actor)
        else:
            call()
        self.start()
        return True

    def schedule_actor_task(  # noqa: PLR0917 - Ray's order
        self,
        tracked_actor: PlainActor,
        method_name: str,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        on_result: Any = None,
        on_error: Any = None,
        _return_future: bool = False,
    ) -> Any:
        if method_name == "stop":
            return None
        seconds, value = tracked_actor.work(method_name, args)
        tracked_actor.busy_until = max(self.now, tracked_actor.busy_until) + seconds
        self.come(
            tracked_actor.busy_until - self.now,
            2,
            tracked_actor,
            method_name,
            lambda: on_result(tracked_actor, value),
        )
        return None

    def clear_actor_task_futures(self, tracked_actor: PlainActor) -> None:
        self.coming = [one for one in self.coming if one[3] is not tracked_actor]

    def remove_actor(self, tracked_actor: PlainActor, kill: bool = False, stop_future: Any = None) -> bool:
        if tracked_actor in self.waiting:
            self.waiting.remove(tracked_actor)
            return False
        if not tracked_actor.live:
            self.clear_actor_task_futures(tracked_actor)
            tracked_actor.on_stop = None
        self.come(max(0.0, tracked_actor.busy_until - self.now) + COSTS.stop_s, 1, tracked_actor, "stop", None)
        return True


class Log(Callback):
    """What happened and when, by Tune's own callbacks."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Any, float]] = []
        self.now: Any = None

    def line(self, what: str, trial: Any, detail: Any = None) -> None:
        self.lines.append((what, trial.trial_id, detail, round(self.now(), 6)))

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.line("start", trial)

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.line("complete", trial)


class Logged:
    """A scheduler, with what the controller tells it noted down."""

    def __init__(self, scheduler: Any, log: Log) -> None:
        self.inner, self.log = scheduler, log

    def __getattr__(self, name: str) -> Any:
        told = getattr(self.inner, name)
        if name not in ("on_trial_add", "on_trial_result"):
            return told

        def tell(controller: Any, trial: Any, *result: Any) -> Any:
            if not result:
                self.log.line("add", trial)
            decision = told(controller, trial, *result)
            if result:
                self.log.line("result", trial, (result[0]["training_iteration"], decision))
            return decision

        return tell


def rays_own(scheduler: Any, slots: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    manager, log = PlainManager(slots), Log()
    monkeypatch.setattr(tune_controller, "RayActorManager", lambda resource_manager: manager)
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    monkeypatch.setattr("ray.train._internal.storage._get_ray_train_session_dir", lambda: str(tmp_path / "session"))
    # Ray takes any of several waiting trials out of a set, in the order of addresses: here in that of numbers.
    monkeypatch.setattr(Trial, "__hash__", lambda trial: int(trial.trial_id))
    register_trainable("pair", Pair)
    storage = StorageContext(storage_path=str(tmp_path), experiment_dir_name="conformance")
    clock = lambda: manager.now  # noqa: E731
    log.now = clock
    scheduler = adapted(scheduler)
    scheduler.prepare(SweepFacts(clock=clock))
    scheduler.set_search_properties("loss", "min")
    search = SweepSearch(CurveSearcher(CURVES, seed=3), TRIALS, clock=clock, admit=scheduler.admits)
    search.add_configurations(SimpleNamespace(spec={"run": "pair", "storage": storage}))
    untyped: Any = TuneController
    controller = untyped(
        search_alg=search,
        scheduler=Logged(scheduler, log),
        reuse_actors=True,
        callbacks=[log],
        storage=storage,
        checkpoint_period=10**6,
        resource_manager_factory=lambda: None,
    )
    controller._resource_updater = SimpleNamespace(
        get_num_cpus=lambda: slots, get_num_gpus=lambda: 0, update_avail_resources=lambda: None
    )
    manager.trial_of = lambda actor: controller._actor_to_trial[actor]
    while not controller.is_finished():
        controller.step()
        assert len(log.lines) < 100_000, log.lines[-10:]
    return log.lines


def simulated(scheduler: Any, slots: int) -> list[Any]:
    run = simulate(
        CURVES,
        scheduler=scheduler,
        num_samples=TRIALS,
        workers=WORKERS,
        cluster=f"1x{slots}",
        seed=3,
        costs=COSTS,
        events=True,
    )
    kinds = ("add", "start", "result", "complete")
    return [(e.what, e.trial, e.detail, round(e.time, 6)) for e in run.events if e.what in kinds]


SCHEDULERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHA(max_t=EPOCHS, reduction_factor=3),
    "elastic_asha": lambda: ElasticASHA(max_t=EPOCHS),
    "ray_asha": lambda: AsyncHyperBandScheduler(max_t=EPOCHS, reduction_factor=3, grace_period=1),
    "hyperband": lambda: HyperBandScheduler(max_t=EPOCHS),
    "median": lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=3, min_samples_required=3),
}


@pytest.mark.parametrize("slots", [4, 10])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_order_and_times_of_events_are_those_of_rays_controller(
    name: str, slots: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    make: Any = SCHEDULERS[name]
    real = rays_own(make(), slots, tmp_path, monkeypatch)
    sim = simulated(make(), slots)
    assert len({line[1] for line in real if line[0] == "complete"}) == TRIALS
    for number, (ours, theirs) in enumerate(zip(sim, real, strict=False)):
        assert ours == theirs, (number, sim[max(0, number - 5) : number + 3], real[max(0, number - 5) : number + 3])
    assert len(sim) == len(real)
    decisions = {line[2][1] for line in real if line[0] == "result"}
    assert name == "fifo" or decisions & {TrialScheduler.STOP, TrialScheduler.PAUSE}
