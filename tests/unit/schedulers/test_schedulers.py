"""One contract that every scheduler keeps, tunelight's and Ray's, and the wrapper that spares repetitions."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule

from tests.curves import FREE, Given, falling
from tests.unit.schedulers.test_asha import STOP, TUNE, add, make_asha, report
from tests.world import Simulation, simulate
from tunelight.compat.ray import stub_trial
from tunelight.extras.reproduce import Until
from tunelight.messages import Continue
from tunelight.schedulers import ASHA, ElasticASHA, GangPBT
from tunelight.schedulers.base import adapted
from tunelight.schedulers.wrapper import SweepScheduler

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
    "ray's median": lambda: MedianStoppingRule(**TIME, grace_period=1, min_samples_required=3),
}


def of(*names: str) -> Any:
    """Parametrize by schedulers."""
    return pytest.mark.parametrize("name", names)


def run(scheduler: Any, count: int, **more: Any) -> Simulation:
    """Train so many trials of nine epochs on four slots."""
    workers = (1, 4) if isinstance(scheduler, ElasticASHA) else 1
    given = {"workers": workers, "slots": 4, "costs": FREE, **more}
    return simulate(Given(*falling(count, 9)), scheduler, num_samples=count, **given)


@of(*SCHEDULERS)
def test_the_best_trial_is_trained_to_its_end_also_where_it_is_alone(name):
    assert run(SCHEDULERS[name](), 18).regret() == 0
    assert run(SCHEDULERS[name](), 1).trials[0].reports == 9


@of(*SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Mean of empty slice")  # Ray's own, of its median stopping rule; gone from 2.60 on
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_nan_at_the_first_report_is_divergence(name):
    losses = Given([0.9] * 9, [math.nan] * 9, [0.8] * 9)
    found = simulate(losses, SCHEDULERS[name](), num_samples=6, slots=2, costs=FREE)
    assert [trial.state for trial in found.trials if trial.number % 3 == 1] == ["DIVERGED"] * 2
    assert {trial.state for trial in found.trials if trial.number % 3 != 1} <= {"FINISHED", "STOPPED"}


def told_again(name: str) -> tuple[Any, Any, list[Any], list[Any]]:
    """Return a scheduler that has run, another that heard the same of a cluster it cannot see, and their answers."""
    told, again = SCHEDULERS[name](), SCHEDULERS[name]()
    answers: list[Any] = []
    others: list[Any] = []
    trials: dict[str, Any] = {}
    controller = SimpleNamespace(
        get_trials=lambda: list(trials.values()), get_live_trials=lambda: list(trials.values())
    )

    def tell_both(method: str, call: Any, real: Any, trial: Trial, *result: Any) -> Any:
        copied = copy.deepcopy(result)
        answers.append(call(real, trial, *result))
        other = trials.setdefault(
            trial.trial_id, Trial("recorded", stub=True, trial_id=trial.trial_id, config=dict(trial.evaluated_params))
        )
        if copied:
            other.run_metadata.last_result = copied[0]
        others.append(getattr(again, method)(controller, other, *copied))
        return answers[-1]

    for method in ("on_trial_add", "on_trial_result", "on_trial_complete", "on_trial_error", "on_trial_remove"):
        setattr(told, method, functools.partial(tell_both, method, getattr(told, method)))
    told.__deepcopy__ = lambda _: told  # a sweep copies what it is given
    run(told, 24)
    return told, again, answers, others


def known(scheduler: Any) -> Any:
    """Return what a scheduler knows of its trials."""
    if isinstance(scheduler, GangPBT):
        members = {key: replace(one, told=False, leaves=False) for key, one in scheduler._members.items()}
        return members, scheduler.num_exploits, str(scheduler._rng.get_state())
    rungs = scheduler._promotion.rungs if isinstance(scheduler, ElasticASHA) else itertools.chain(*scheduler._brackets)
    return [(rung.filed, rung.promoted, rung.waiting()) for rung in rungs]


@of(*SCHEDULERS)
def test_its_answers_and_its_state_follow_from_the_reports_alone(name):
    told, again, answers, others = told_again(name)
    if "population" not in name and name != "ray's median":  # who of a population pauses for a turn is a matter of room
        assert others == answers
    if name != "fifo" and "ray's" not in name:
        assert known(again) == known(told)


# --- the wrapper spares repetitions: they compete with nobody, and nobody with them ---------------------


def spared(scheduler: Any, end: float = math.inf) -> Any:
    queue = SimpleNamespace(
        ends_at=lambda trial_id: end if trial_id.startswith("again") else None, has_room=lambda: True, held=False
    )
    return SweepScheduler(adapted(scheduler), queue)


def test_a_repetition_of_a_trial_that_was_stopped_is_stopped_at_the_same_report() -> None:
    sparing = spared(make_asha(), end=3)
    again = add(sparing, "again")
    assert [report(sparing, again, number, 0.1) for number in (1, 2, 3)][-1] == STOP


@pytest.mark.parametrize(("end", "until"), [(math.inf, None), (5, 5)])
def test_the_gang_of_a_repetition_need_not_wait_for_answers_before_its_end(end: float, until: int | None) -> None:
    told: list[Any] = []
    sparing = spared(make_asha(), end)
    again = add(sparing, "again")
    again.temporary_state.ray_actor = SimpleNamespace(decide=SimpleNamespace(remote=told.append))
    for number in (1, 2):
        report(sparing, again, number, 0.1)
    assert told == [Continue(until=until)]


@pytest.mark.parametrize("kind", [HyperBandScheduler, FIFOScheduler])
def test_a_repetition_that_waits_is_run_where_the_scheduler_knows_only_its_own_trials(kind: Any) -> None:
    sparing = spared(kind())
    again = stub_trial("again", {})
    controller = SimpleNamespace(get_trials=lambda: [again])
    again.status = "PENDING"
    sparing.on_trial_add(controller, again)
    assert sparing.choose_trial_to_run(controller) is again
    again.status = "RUNNING"
    assert sparing.choose_trial_to_run(controller) is None
    again.status = "PAUSED"
    assert sparing.choose_trial_to_run(controller) is again


@pytest.mark.parametrize("call", ["on_trial_add", "on_trial_error", "on_trial_remove", "on_trial_complete"])
def test_the_scheduler_learns_nothing_of_a_repetition(call: str) -> None:
    scheduler: Any = FIFOScheduler()
    setattr(scheduler, call, heard := mock.Mock())
    sparing = spared(scheduler)
    result = [{"training_iteration": 8, "loss": 0.01}] if call == "on_trial_complete" else []
    getattr(sparing, call)(None, stub_trial("again", {}), *result)
    heard.assert_not_called()
    getattr(sparing, call)(None, stub_trial("a", {}), *result)
    heard.assert_called_once()


def test_until_says_where_a_trial_was_to_end():
    until, trial = Until(3), add(make_asha(), "a")
    said = []
    for number in (2, 3):
        until.on_trial_result(TUNE, trial, {"training_iteration": number})
        said.append(until.reason("a"))
    assert said == [None, "was to end at report 3"]
    until.on_trial_complete(TUNE, trial, {})
    assert until.reason("a") is None
