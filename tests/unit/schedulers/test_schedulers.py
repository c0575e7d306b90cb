"""One contract that every scheduler keeps, tunelight's and Ray's."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule

from tests.kit.controller import Cluster, curves
from tunelight.schedulers import ASHA, ElasticASHA, GangPBT

TIME: dict[str, Any] = {"time_attr": "training_iteration", "metric": "loss", "mode": "min"}
JUDGED: dict[str, Any] = {"metric": "loss", "mode": "min"}
X: dict[str, Any] = {"perturbation_interval": 2, "hyperparam_mutations": {"x": tune.uniform(0, 1)}}

SCHEDULERS: dict[str, Callable[[], Any]] = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHA(**JUDGED, max_t=9, reduction_factor=3),
    "asha of two brackets": lambda: ASHA(**JUDGED, max_t=9, reduction_factor=3, brackets=2),
    "elastic": lambda: ElasticASHA(**JUDGED, max_t=9),
    "elastic that grows": lambda: ElasticASHA(**JUDGED, max_t=9, max_workers=4),
    "elastic with a deadline": lambda: ElasticASHA(**JUDGED, max_t=9, max_workers=4, deadline_s=60.0),
    "population": lambda: GangPBT(**JUDGED, **X, max_t=9),
    "population of no known end": lambda: GangPBT(**JUDGED, **X),
    "ray's asha": lambda: AsyncHyperBandScheduler(**TIME, max_t=9, reduction_factor=3, stop_last_trials=False),
    "ray's hyperband": lambda: HyperBandScheduler(**TIME, max_t=9),
    "ray's median": lambda: MedianStoppingRule(**TIME, grace_period=1, min_samples_required=3),
}
POPULATIONS = [name for name in SCHEDULERS if "population" in name]


def of(*names: str) -> Any:
    """Parametrize by schedulers."""
    return pytest.mark.parametrize("name", names)


def best_of(given: list[Callable[[int], float]]) -> int:
    return min(range(len(given)), key=lambda number: given[number](9))


def run(name: str, given: list[Callable[[int], Any]], **settings: Any) -> Cluster:
    return Cluster(SCHEDULERS[name](), **{"slots": 4, **settings}).run(given)


@of(*SCHEDULERS)
def test_one_trial_alone_is_trained_to_its_end(name):
    assert run(name, curves(1)).reached(0) == 9


@of(*SCHEDULERS)
def test_the_best_trial_is_trained_to_its_end(name):
    given = curves(18)
    assert run(name, given).reached(best_of(given)) == 9


@of(*SCHEDULERS)
def test_a_hundred_errors_do_not_end_the_sweep(name):
    def fail(t: int) -> float:
        if t >= 2:
            raise RuntimeError("the training code raised")
        return 0.1

    given = [*[fail] * 50, *curves(6), *[fail] * 50]
    cluster = run(name, given)
    assert {trial.status for trial in cluster.trials} <= {Trial.TERMINATED, Trial.ERROR}
    assert len(cluster.trials) == 106


@of(*SCHEDULERS)
def test_the_same_reports_bring_the_same_decisions(name):
    first, second = (run(name, curves(20), seed=5).log for _ in range(2))
    assert first == second


class Told:
    """Stands before a scheduler, and notes what it is told and what it answers."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not name.startswith("on_trial_"):
            return method

        def call(controller: Any, trial: Trial, *result: Any) -> Any:
            answer = method(controller, trial, *result)
            self.calls.append((name, trial.trial_id, copy.deepcopy(result), answer))
            return answer

        return call


def told_again(name: str) -> tuple[Told, Any, list[Any]]:
    """Return a scheduler that has run, another one that was told the same of a cluster it cannot see, its answers."""
    told = Told(SCHEDULERS[name]())
    Cluster(told, slots=4).run(curves(24))
    again, trials = SCHEDULERS[name](), dict[str, Any]()
    controller = SimpleNamespace(
        get_trials=lambda: list(trials.values()), get_live_trials=lambda: list(trials.values())
    )
    answers = []
    for method, trial_id, result, _ in told.calls:
        trial = trials.setdefault(trial_id, Trial("recorded", stub=True, trial_id=trial_id, config={"x": 0.5}))
        if result:
            trial.run_metadata.last_result = result[0]
        answers.append(getattr(again, method)(controller, trial, *result))
    return told, again, answers


# Who of a population pauses for a turn is a matter of room; hyperband and the median rule of Ray's ask who waits.
@of(*(name for name in SCHEDULERS if name not in (*POPULATIONS, "ray's hyperband", "ray's median")))
def test_its_answers_follow_from_the_reports_alone(name):
    told, _, answers = told_again(name)
    assert answers == [answer for *_, answer in told.calls]


def known(scheduler: Any) -> Any:
    """Return what a scheduler knows of its trials."""
    if isinstance(scheduler, GangPBT):
        members = {key: replace(one, told=False, leaves=False) for key, one in scheduler._members.items()}
        return members, scheduler.num_exploits, str(scheduler._rng.get_state())
    rungs = scheduler._promotion.rungs if isinstance(scheduler, ElasticASHA) else itertools.chain(*scheduler._brackets)
    return [(rung.filed, rung.promoted, rung.waiting()) for rung in rungs]


@of(*(name for name in SCHEDULERS if name != "fifo" and "ray's" not in name))
def test_its_state_follows_from_the_reports_alone(name):
    told, again, _ = told_again(name)
    assert known(again) == known(told.inner)
