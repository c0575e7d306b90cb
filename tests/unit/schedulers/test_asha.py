"""The edges of the ASHA scheduler; tests/differential holds it to its rule, and what it tells gangs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ray.tune.schedulers.trial_scheduler import TrialScheduler

from tunelight.errors import SettingsError
from tunelight.schedulers import ASHA

CONTINUE, STOP = TrialScheduler.CONTINUE, TrialScheduler.STOP
TUNE: Any = None
"""Stands for the controller, which ASHA never asks anything."""


def make_trial(trial_id: str, handle: Any = None) -> Any:
    return SimpleNamespace(trial_id=trial_id, temporary_state=SimpleNamespace(ray_actor=handle))


def make_asha(**settings: Any) -> ASHA:
    return ASHA(**{"metric": "loss", "mode": "min", **settings})


def add(asha: ASHA, trial_id: str, handle: Any = None) -> Any:
    trial = make_trial(trial_id, handle)
    asha.on_trial_add(TUNE, trial)
    return trial


def report(asha: ASHA, trial: Any, t: int, value: Any, **more: Any) -> str:
    return asha.on_trial_result(TUNE, trial, {"training_iteration": t, "loss": value, **more})


@pytest.mark.parametrize(("value", "said"), [(-math.inf, "-inf"), (np.float32("nan"), "nan"), (10**400, "inf")])
def test_what_is_no_finite_number_stops(value, said):
    asha = make_asha()
    assert report(asha, add(asha, "first"), 1, value) == STOP
    assert asha.reason("first") == f"reported loss={said}"
    assert report(asha, add(asha, "second"), 1, 3.0) == CONTINUE


def test_reports_that_name_their_epoch_may_be_several_in_one_and_come_after_the_last():
    asha = make_asha(max_t=4, grace_period=4)
    trial, fitted = add(asha, "a"), add(asha, "fitted")
    assert [report(asha, trial, t, 0.5, epoch=(t - 1) // 2) for t in range(1, 10)] == [CONTINUE] * 8 + [STOP]
    assert asha.reason("a") == "trained on past max_t=4"
    for t in (1, 2, 3, 4):
        report(asha, fitted, t, 0.5, epoch=t - 1)
    assert report(asha, fitted, 5, 0.5, epoch=None, test_acc=0.9) == CONTINUE


def test_a_fractional_reduction_factor_counts_exactly():
    asha = make_asha(reduction_factor=1.1, max_t=2)
    for i in range(10):
        report(asha, add(asha, f"t{i}"), 1, float(i))
    assert report(asha, add(asha, "tenth"), 1, 8.5) == CONTINUE  # 10th of 11, and 11 / 1.1 is 10


def test_a_last_report_that_came_with_the_end_is_filed_and_a_failure_is_not():
    asha = make_asha()
    failed = add(asha, "failed")
    asha.on_trial_complete(TUNE, failed, {"training_iteration": 1, "done": True})
    asha.on_trial_error(TUNE, failed)
    assert not asha._brackets[0][0].filed
    asha.on_trial_complete(TUNE, add(asha, "a"), {"training_iteration": 1, "loss": 0.1, "done": True})
    assert report(asha, add(asha, "b"), 1, 0.2) == STOP


def test_brackets_start_later_and_share_the_trials_by_weight():
    asha = make_asha(brackets=3, max_t=64, reduction_factor=4)
    assert [asha.milestones(s) for s in range(3)] == [[1, 4, 16], [4, 16], [16]]
    for i in range(232):
        add(asha, str(i))
    dealt = [asha._bracket_of[str(i)] for i in range(232)]
    weights = [4**3 / 4, 4**2 / 3, 4**1 / 2]  # the same budget each: eta^m / (m + 1)
    for bracket, weight in enumerate(weights):
        assert dealt.count(bracket) == pytest.approx(232 * weight / sum(weights), abs=1)
    assert set(dealt[:8]) == {0, 1, 2}  # interleaved, not in blocks


def test_metric_and_mode_may_come_from_tune_and_there_have_to_be_both():
    asha = ASHA()
    assert asha.set_search_properties("loss", "max")
    assert (asha.metric, asha.mode) == ("loss", "max")
    assert report(asha, add(asha, "a"), 1, 0.5) == CONTINUE
    assert report(asha, add(asha, "b"), 1, 0.4) == STOP
    assert asha.set_search_properties("loss", None)
    assert not asha.set_search_properties("acc", None)
    assert not asha.set_search_properties(None, "min")
    assert ASHA(mode="min").set_search_properties(None, None)
    with pytest.raises(SettingsError, match="needs a metric and a mode"):
        add(ASHA(metric="loss"), "a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "minimum"}, "'min' or 'max', and is 'minimum'"),
        ({"grace_period": 9, "max_t": 8}, "at most max_t, and is 9 with max_t=8"),
        ({"grace_period": 0}, "grace_period must be more than 0, not 0"),
        ({"max_t": math.inf}, "max_t must be a number, more than 0, not inf"),
        ({"max_t": "8"}, "max_t must be"),
        ({"reduction_factor": 1}, "above 1"),
        ({"brackets": 0}, "brackets must be a whole number of 1 or more, not 0"),
        ({"brackets": 1.5}, "whole number"),
        ({"brackets": 4, "max_t": 16}, "the last of brackets=4 would lie beyond max_t=16"),
        ({"unit": "samples", "time_attr": "steps"}, "unit='samples', which counts 'samples', and time_attr='steps'"),
        ({"unit": "sample"}, r"is 'sample'. Did you mean 'samples'"),
    ],
)
def test_bad_settings_are_refused_with_the_value(settings, message):
    with pytest.raises(SettingsError, match=message):
        make_asha(**settings)


DEAD = mock.Mock(**{"decide.remote.side_effect": RuntimeError("the actor died")})


@pytest.mark.parametrize("handle", [None, object(), DEAD])
def test_an_actor_that_is_missing_or_dead_never_raises_and_a_report_without_the_time_decides_nothing(handle):
    asha = make_asha()
    trial = add(asha, "a", handle)
    assert asha.on_trial_result(TUNE, trial, {"loss": math.nan}) == CONTINUE
    assert report(asha, trial, 1, 0.5) == CONTINUE
    assert report(asha, trial, 2, math.nan) == STOP
    assert report(asha, make_trial("never added"), 1, math.nan) == CONTINUE


def test_asha_says_a_stopped_trial_s_place_at_its_rung_and_how_many_go_on():
    asha = make_asha(grace_period=4, reduction_factor=4)
    for number in range(11):
        report(asha, add(asha, f"t{number}"), 4, float(number))
    late = add(asha, "late")
    assert report(asha, late, 3, 6.5) != STOP
    assert asha.reason("late") is None
    assert report(asha, late, 4, 6.5) == STOP
    assert asha.reason("late") == "place 8 of 12 at rung 4; the best 3 go on"
    assert asha.reason("t2") == "place 3 of 3 at rung 4; the best goes on"
    assert asha.reason("t0") is None
    asha.on_trial_error(TUNE, late)
    assert asha.reason("late") is None


@pytest.mark.parametrize(
    ("settings", "name", "rung"),
    [
        ({"unit": "seconds"}, "time_total_s", "rung 0.3 (seconds)"),
        ({"unit": "samples", "grace_period": 1_000_000, "max_t": 9_000_000}, "samples", "rung 1000000 (samples)"),
        ({"time_attr": "steps"}, "steps", "rung 0.3 (steps)"),
    ],
)
def test_a_rung_that_does_not_count_epochs_is_named_with_its_unit(settings, name, rung):
    asha = make_asha(**{"grace_period": 0.1 * 3, **settings})
    for trial, loss in (("a", 0.1), ("b", 0.2)):
        asha.on_trial_result(TUNE, add(asha, trial), {name: asha.milestones()[0], "loss": loss})
    assert asha.reason("b") == f"place 2 of 2 at {rung}; the best goes on"
