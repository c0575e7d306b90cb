"""Why a scheduler stopped or paused a trial, in words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.kit.controller import Cluster, curves
from tests.unit.schedulers.test_asha import STOP, TUNE, add, make_asha, report
from tests.unit.schedulers.test_elastic import make
from tests.unit.schedulers.test_pbt import Population
from tunelight.schedulers.common import End
from tunelight.schedulers.until import Until


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


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_asha_says_which_value_ended_a_trial_that_is_no_number(value):
    asha = make_asha()
    assert report(asha, add(asha, "a"), 1, value) == STOP
    assert asha.reason("a") == f"reported loss={value}"


def test_asha_says_that_a_trial_trained_past_the_end():
    asha = make_asha(max_t=2)
    trial = add(asha, "a")
    assert [report(asha, trial, number, 0.1) for number in (1, 2, 3)][-1] == STOP
    assert asha.reason("a") == "trained on past max_t=2"


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


@pytest.mark.parametrize("end", ["on_trial_remove", "on_trial_error", "on_trial_complete"])
def test_the_reason_is_forgotten_with_its_trial(end):
    asha = make_asha()
    report(asha, add(asha, "a"), 1, 0.1)
    trial = add(asha, "b")
    report(asha, trial, 1, 0.2)
    assert asha.reason("b")
    last: tuple[Any, ...] = ({"training_iteration": 1, "loss": 0.2},) if end == "on_trial_complete" else ()
    getattr(asha, end)(TUNE, trial, *last)
    assert asha.reason("b") is None


class Asked(Cluster):
    """A cluster that asks the scheduler for its reason after each decision, as the record does, and each promotion."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reasons: list[tuple[str, str | None]] = []
        self.promoted: list[str | None] = []
        decide, choose = self.scheduler.on_trial_result, self.scheduler.choose_trial_to_run

        def asked(controller: Any, trial: Any, result: Any) -> str:
            decision = str(decide(controller, trial, result))
            self.reasons.append((decision, self.scheduler.reason(trial.trial_id)))
            return decision

        def chosen(controller: Any) -> Any:
            trial = choose(controller)
            if trial is not None:
                self.promoted.append(self.scheduler.reason(trial.trial_id))
            return trial

        self.scheduler.on_trial_result, self.scheduler.choose_trial_to_run = asked, chosen


def test_elastic_asha_says_why_a_trial_pauses_and_forgets_it_when_the_trial_goes_on_or_ends():
    elastic = make()
    cluster = Asked(elastic, max_t=27)
    cluster.run(curves(12))
    paused = [reason for decision, reason in cluster.reasons if decision == "PAUSE"]
    assert paused[0] == "place 2 of 2 at rung 1; none goes on yet"
    assert any(str(reason).endswith("; the best 3 go on") for reason in paused)
    assert {reason for decision, reason in cluster.reasons if decision == "CONTINUE"} == {None}
    assert [elastic.reason(trial.trial_id) for trial in cluster.trials] == [None] * 12


def test_elastic_asha_forgets_the_reason_of_a_pause_as_soon_as_the_trial_is_promoted():
    cluster = Asked(make(), max_t=27)
    cluster.run(curves(40))
    assert cluster.promoted
    assert set(cluster.promoted) == {None}


def test_elastic_asha_says_why_it_stops_a_trial():
    cluster = Asked(make(max_t=3), max_t=9)
    cluster.run([lambda _: math.nan, *curves(3)])
    stopped = {reason for decision, reason in cluster.reasons if decision == "STOP"}
    assert stopped == {"reported loss=nan", "trained on past max_t=3"}


def test_a_population_says_why_a_member_pauses():
    population = Population(max_lead=3)
    for number in range(1, 4):
        population.report(0, number, 0.5)
    assert population.pbt.reason("00000") is None
    population.report(0, 4, 0.5)
    assert population.pbt.reason("00000") == "too far ahead of the slowest"
    crowded = Population(cpus=2)
    crowded.trials[1].status = "PENDING"
    for number in (1, 2):
        crowded.report(0, number, 0.5)
    assert crowded.pbt.reason("00000") == "others wait for their turn"
    crowded.pbt.on_trial_remove(crowded.controller, crowded.trials[0])
    assert crowded.pbt.reason("00000") is None


def test_until_says_where_a_trial_was_to_end():
    until, trial = Until(3), add(make_asha(), "a")
    said = []
    for number in (2, 3):
        until.on_trial_result(TUNE, trial, {"training_iteration": number})
        said.append(until.reason("a"))
    assert said == [None, "was to end at report 3"]
    until.on_trial_complete(TUNE, trial, {})
    assert until.reason("a") is None


@pytest.mark.parametrize("first", [0, 1])
def test_a_trial_that_reports_twice_an_epoch_ends_by_its_epochs_wherever_it_counts_from(first: int) -> None:
    end = End(8)
    ended = [end.past("a", {"epoch": first + report // 2}, report + 1) for report in range(18)]
    assert ended == [False] * 16 + [True] * 2
