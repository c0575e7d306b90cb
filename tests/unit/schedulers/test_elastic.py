"""ElasticASHA: who is promoted, who pauses, who grows, and that it comes to an end."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from ray.tune.experiment import Trial

from tests.curves import FREE, Given, falling
from tests.world import Costs, Simulation, simulate
from tests.world.gangs import Happened
from tests.world.run import SimController
from tunelight.messages import Resize
from tunelight.schedulers import ElasticASHA
from tunelight.schedulers.elastic import Growth
from tunelight.schedulers.members import Member, Members, Pace, Speed, State, TrialResources


def make(**settings: Any) -> ElasticASHA:
    return ElasticASHA(**{"metric": "loss", "mode": "min", "max_t": 27, **settings})


def run(count: int, scheduler: Any, *, epochs: int = 27, costs: Costs = FREE) -> tuple[Simulation, list[Happened]]:
    """Train so many trials on eight slots; return the sweep, and when whose gang was told to have another size."""
    given = Given(*falling(count, epochs))
    sweep = simulate(given, scheduler, num_samples=count, workers=(1, 8), costs=costs)
    return sweep, [one for one in sweep.world.happened if one.what == "decide" and isinstance(one.detail, Resize)]


def test_a_survivor_grows_by_doubling_to_its_most_once_nothing_waits():
    sweep, resizes = run(8, make(max_workers=7, cooldown=1))
    (best,) = (trial.trial_id for trial in sweep.trials if trial.reports == 27)
    assert [one.detail.workers for one in resizes if one.trial == best][-1] == 7
    assert {one.detail.workers for one in resizes} <= {2, 4, 7}
    assert sweep.world.usage[-2].busy == 7  # until the end


def test_nothing_grows_while_new_trials_wait():
    sweep, resizes = run(60, make(max_workers=8, cooldown=1))
    assert resizes[0].time >= max(trial.started_s or 0.0 for trial in sweep.trials)


def test_a_growth_that_is_not_granted_is_withdrawn_and_asked_for_smaller_and_less_often(monkeypatch):
    monkeypatch.setattr("tunelight.schedulers.elastic._PATIENCE_S", 0.0)  # an epoch is a second here
    _, resizes = run(1, make(max_workers=8, cooldown=1), costs=replace(FREE, grow_s=1e9))
    asked = [one.detail.workers for one in resizes]
    assert asked[:6] == [8, 1, 4, 1, 2, 1]
    assert len(asked) < 14  # of 26 reports


def test_no_gang_grows_for_less_than_a_resize_costs():
    growth = Growth(Members(), 8, 5)
    growth.speed.heard(Pace(), 1, 10.0, 1)
    for start in (90.0, 20.0):  # a cold one, then a warm one
        pace = Pace()
        for at in (1, 2, 3):
            growth.speed.heard(pace, at, start + 10.0 * at, 1)
    assert growth.speed.each(1) == 10.0
    assert growth.speed.resize_s == 20.0  # until one is measured, what the warm start cost beyond its report
    assert not growth._saves(1, 2, 13)  # the new workers start for 90 s; half of the 40 s after it is less than 22 s
    assert growth._saves(1, 2, 14)


def test_speeds_and_the_cost_of_a_resize_are_learned_from_reports():
    speed, pace = Speed(), Pace()
    seconds = itertools.accumulate([13, 10, 10, 9, 6, 6])  # the first with a start of 3 s, the fourth with a resize
    for at, (second, workers) in enumerate(zip(seconds, [1, 1, 1, 2, 2, 2], strict=True), start=1):
        speed.heard(pace, at, second, workers)
    assert (speed.start_s, speed.resize_s) == (3, 3)
    assert (speed.each(1), speed.each(2)) == (10, 6)
    assert speed.gain(2) == pytest.approx(math.log2(10 / 6))
    assert speed.each(4) == pytest.approx(6 * 6 / 10)  # as the last doubling
    assert speed.factor(4, 1) == pytest.approx(1 / speed.factor(1, 4))


def growing(most: int, slots: int, cooldown: int = 0) -> Growth:
    growth = Growth(Members(), most, cooldown)
    growth.ledger.capacity = (float(slots), 0.0)
    return growth


def going(growth: Growth, number: int, target: int = 0, loss: float = 0.5) -> Member:
    """Return a trial of one worker that trains, and keeps what its gang is told in ``trial``."""
    member = growth._members[str(number)]
    told: list[Any] = []
    member.resources, member.loss = TrialResources(1, (1.0, 0.0), (1.0, 0.0)), loss
    actor = SimpleNamespace(decide=SimpleNamespace(remote=told.append))
    member.trial = SimpleNamespace(temporary_state=SimpleNamespace(ray_actor=actor), told=told)
    growth.started(member)
    growth._members.move(member, State.GOING, target)
    return member


def hear(growth: Growth, member: Member, at: int, second: float, workers: int) -> None:
    member.progress = at
    growth.heard(member, {"time_total_s": second, "_tunelight/workers": workers})


def test_what_gains_nothing_is_given_back():
    growth = growing(most=4, slots=4)
    member = going(growth, 0)
    for at, workers in enumerate([1, 1, 4, 4], start=1):
        hear(growth, member, at, 10.0 * at, workers)
        growth.adjust(None, member, 20, 20, alone=True)
    assert member.trial.told == [Resize(4), Resize(1)]


def test_two_that_grow_are_not_promised_the_same_slots():
    growth = growing(most=8, slots=7)
    first, second = going(growth, 0), going(growth, 1)
    for member in (first, second):
        for at in (1, 2):
            hear(growth, member, at, 10.0 * at, 1)
        growth.adjust(None, member, 20, 20, alone=True)
    assert (first.target_workers, second.target_workers) == (4, 2)
    growth._members.move(first, State.ENDED)
    growth.gone(first)
    hear(growth, second, 3, 25.0, 2)
    growth.adjust(None, second, 20, 20, alone=True)
    assert second.target_workers == 4


def test_who_has_more_to_train_gets_more_of_the_cluster():
    growth = growing(most=8, slots=8)
    short, long = going(growth, 0), going(growth, 1)
    for at in (1, 2):
        hear(growth, short, at, 10.0 * at, 1)
        hear(growth, long, at, 10.0 * at, 1)
        growth.adjust(None, short, 5, 5, alone=False)  # nobody is told anything, but their work is known
        growth.adjust(None, long, 20, 40, alone=False)
    growth.adjust(None, short, 5, 5, alone=True)
    growth.adjust(None, long, 20, 40, alone=True)
    assert (short.target_workers, long.target_workers) == (1, 4)


def test_the_least_promising_of_those_that_grew_gives_back_no_more_than_is_needed():
    growth = growing(most=4, slots=8)
    ahead, behind = going(growth, 0, target=1, loss=0.9), going(growth, 1, target=0, loss=0.1)
    for member in (ahead, behind):
        for at, workers in enumerate([1, 1, 4], start=1):
            hear(growth, member, at, 10.0 * at, workers)
            growth.adjust(None, member, 20, 20, alone=True)
    assert growth.ledger.free(ahead.resources) == 0
    growth.make_room(ahead.resources)
    growth.make_room(ahead.resources)  # what is on its way back is not asked for again
    assert (ahead.target_workers, behind.target_workers) == (4, 2)
    assert growth.ledger.free(ahead.resources) == 0  # until the gang has given it back
    hear(growth, behind, 4, 35.0, 2)
    assert growth.ledger.free(ahead.resources) == 2


def test_warm_gangs_that_nobody_needs_are_let_go_before_a_growth():
    clean_up = SimController._cleanup_cached_actors
    with mock.patch.object(SimController, clean_up.__name__, autospec=True, side_effect=clean_up) as noted:
        run(3, make(max_workers=8))
    assert any(call.kwargs.get("force_all") for call in noted.mock_calls)


NOBODY: Any = SimpleNamespace(get_trials=list)


def rung_trial(elastic: ElasticASHA, name: str) -> Any:
    trial: Any = Trial("made", stub=True, trial_id=name)
    elastic.on_trial_add(NOBODY, trial)
    return trial


def reported(elastic: ElasticASHA, trial: Any, at: int, loss: float) -> str:
    trial.set_status(Trial.RUNNING)
    answer: str = elastic.on_trial_result(NOBODY, trial, {"loss": loss, "training_iteration": at})
    if answer == "PAUSE":
        trial.set_status(Trial.PAUSED)
    return answer


def test_a_trial_starts_only_while_it_can_come_as_far_as_the_front():
    now = [0.0]
    elastic = make(deadline_s=100.0, clock=lambda: now[0])
    trial = rung_trial(elastic, "first")
    assert elastic.admits()
    trial.set_status(Trial.RUNNING)
    for at in range(1, 10):
        elastic.on_trial_result(NOBODY, trial, {"training_iteration": at, "loss": 0.1, "time_total_s": 5.0 * at})
    now[0] = 54.0  # 46 s are left, and 9 epochs of 5 s bring one to the front
    assert elastic.admits()
    now[0] = 56.0
    assert not elastic.admits()


def test_a_trial_whose_gang_is_lost_while_it_writes_the_checkpoint_of_its_pause_does_not_pass_the_rung():
    elastic = make()
    better, worse = rung_trial(elastic, "better"), rung_trial(elastic, "worse")
    reported(elastic, better, 1, 0.1)
    worse.set_status(Trial.RUNNING)
    assert elastic.on_trial_result(NOBODY, worse, {"loss": 0.5, "training_iteration": 1}) == "PAUSE"
    for _ in range(2):  # before it was paused, and before it reports again
        elastic.on_trial_error(NOBODY, worse)
        worse.set_status(Trial.PENDING)
        elastic.on_trial_add(NOBODY, worse)
    assert elastic.choose_trial_to_run(NOBODY) is not worse
    assert reported(elastic, worse, 2, 0.5) == "PAUSE"


def test_where_nobody_says_how_long_trials_are_none_is_stopped_for_its_length():
    sweep, _ = run(2, ElasticASHA("loss", "min", grace_period=1, reduction_factor=3), epochs=90)
    assert max(trial.reports for trial in sweep.trials) == 90


def test_elastic_asha_says_why_a_trial_pauses_and_forgets_it_when_the_trial_goes_on_or_ends():
    elastic = make()
    trials = [rung_trial(elastic, f"{number:02d}") for number in range(10)]
    reasons = []
    for number, trial in enumerate(trials):
        assert reported(elastic, trial, 1, float(number)) == "PAUSE"
        reasons.append(elastic.reason(trial.trial_id))
    assert reasons[0] == "place 1 of 1 at rung 1; none goes on yet"
    assert reasons[9] == "place 10 of 10 at rung 1; the best 3 go on"
    assert elastic.choose_trial_to_run(NOBODY) is trials[0]
    elastic.on_trial_remove(NOBODY, trials[9])
    assert [elastic.reason(trials[number].trial_id) for number in (0, 8, 9)] == [None, reasons[8], None]


def test_elastic_asha_says_why_it_stops_a_trial():
    elastic = make(max_t=3)
    assert reported(elastic, rung_trial(elastic, "astray"), 1, math.nan) == "STOP"
    assert reported(elastic, rung_trial(elastic, "late"), 4, 0.1) == "STOP"
    assert elastic.reason("astray") == "reported loss=nan"
    assert elastic.reason("late") == "trained on past max_t=3"
