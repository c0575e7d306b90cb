"""The wrapper of a sweep's scheduler spares repetitions: they compete with nobody, and nobody with them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    TrialScheduler,
)

from tests.unit.schedulers.test_asha import STOP, TUNE, add, make_asha, report
from tunelight.compat.ray import stub_trial
from tunelight.errors import SettingsError
from tunelight.messages import Continue
from tunelight.schedulers.base import adapted
from tunelight.schedulers.choose import build_scheduler
from tunelight.schedulers.wrapper import SweepScheduler
from tunelight.settings import Settings
from tunelight.settings.repeats import Repeats

JUDGED: dict[str, Any] = {"metric": "loss", "mode": "min"}
MUTATING: dict[str, Any] = {**JUDGED, "perturbation_interval": 2, "hyperparam_mutations": {"x": [1]}}


def spared(scheduler: Any, end: float = math.inf) -> Any:
    return SweepScheduler(adapted(scheduler), ends_at=lambda trial_id: end if trial_id.startswith("again") else None)


def test_a_repetition_trains_to_its_end_and_leaves_the_rungs_as_they_were() -> None:
    asha = make_asha(grace_period=1, reduction_factor=4)
    sparing = spared(asha)
    assert report(sparing, add(sparing, "a"), 1, 0.1) != STOP
    again = add(sparing, "again")
    assert [report(sparing, again, number, 9.0) for number in range(1, 9)] == [TrialScheduler.CONTINUE] * 8
    sparing.on_trial_complete(TUNE, again, {"training_iteration": 8, "loss": 0.01})
    other = add(sparing, "b")
    assert report(sparing, other, 1, 0.2) == STOP
    assert sparing.reason("b") == "place 2 of 2 at rung 1; the best goes on"
    assert sparing.milestones() == asha.milestones()


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


@pytest.mark.parametrize("call", ["on_trial_add", "on_trial_error", "on_trial_remove"])
def test_the_scheduler_learns_nothing_of_a_repetition(call: str) -> None:
    heard: list[str] = []

    class Listening(FIFOScheduler):
        def __getattribute__(self, name: str) -> Any:
            return (lambda *_: heard.append(name)) if name == call else super().__getattribute__(name)

    listening: Any = Listening
    sparing = spared(listening())
    getattr(sparing, call)(None, stub_trial("again", {}))
    assert heard == []
    getattr(sparing, call)(None, stub_trial("a", {}))
    assert heard == [call]


def test_repeats_are_refused_where_trials_change_their_configuration() -> None:
    with pytest.raises(SettingsError, match=r"GangPBT trials change their configuration.*Leave repeats out, or choose"):
        build_scheduler(Settings(metric="loss", repeats=Repeats(2), scheduler="gang_pbt"))
