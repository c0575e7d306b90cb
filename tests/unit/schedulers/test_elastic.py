"""ElasticASHA: who is promoted, who pauses, who grows, and that it comes to an end."""

from __future__ import annotations

import functools
import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.experiment import Trial

from tests.kit.controller import Cluster, curves
from tunelight.messages import Resize
from tunelight.schedulers import ElasticASHA
from tunelight.schedulers.common import top_count
from tunelight.schedulers.elastic import Growth
from tunelight.schedulers.ledger import TrialResources
from tunelight.schedulers.members import Member, Members, State
from tunelight.schedulers.speed import Pace, Speed, sizes


def make(**settings: Any) -> ElasticASHA:
    return ElasticASHA(**{"metric": "loss", "mode": "min", "max_t": 27, **settings})


@pytest.mark.parametrize(
    ("slots", "workers", "most", "n"), [(4, 1, 4, 20), (1, 1, 1, 10), (8, 2, 8, 3), (16, 2, 16, 40)]
)
def test_a_sweep_ends_with_its_best_trial_trained_to_the_end(slots, workers, most, n):
    elastic = make(max_workers=most)
    cluster = Cluster(elastic, slots=slots, workers=workers, max_t=27).run(curves(n))
    values = [curve(1) for curve in curves(n)]
    assert cluster.reached(values.index(min(values))) == 27
    assert cluster.most_used <= slots


def sizes_of(cluster: Cluster, number: int) -> list[int]:
    """Return the sizes that a trial's gang had, in order, each once in a row."""
    seen = [entry[3] for entry in cluster.log if len(entry) == 4 and entry[1] == f"{number:05d}"]
    return [size for size, before in zip(seen, [None, *seen], strict=False) if size != before]


def told(scheduler: ElasticASHA, workers: int = 1) -> tuple[Cluster, dict[str, list[Any]]]:
    """Return a cluster, and what each trial's gang will have been told there, by trial."""
    heard: dict[str, list[Any]] = {}
    cluster = Cluster(scheduler, slots=8, workers=workers, max_t=27)
    start = cluster._start

    def noting(trial: Any) -> None:
        start(trial)
        if trial.temporary_state.ray_actor is not None:
            heard.setdefault(trial.trial_id, []).append(trial.temporary_state.ray_actor)

    cluster._start = noting  # type: ignore[method-assign]
    return cluster, heard


def test_a_survivor_grows_by_doubling_to_its_most_once_nothing_waits():
    cluster = Cluster(make(max_workers=8, cooldown=1), slots=8, max_t=27).run(curves(8))
    best = min(range(8), key=lambda number: curves(8)[number](1))
    sizes = sizes_of(cluster, best)
    assert sizes[0] == 1
    assert sizes[-1] == 8
    assert set(sizes) <= {1, 2, 4, 8}


def test_nothing_grows_while_new_trials_wait():
    cluster = Cluster(make(max_workers=8, cooldown=1), slots=8, max_t=27)
    cluster.run(curves(60))
    last = max(index for index, entry in enumerate(cluster.log) if entry[0] == 1 and len(entry) == 4)
    before = [entry for entry in cluster.log[:last] if len(entry) == 4]
    assert len(before) > 60
    assert {entry[3] for entry in before} == {1}


@pytest.mark.parametrize("most", [None, 1, 2])
def test_no_gang_grows_past_what_it_may(most):
    cluster = Cluster(make(max_workers=most), slots=8, max_t=27).run(curves(6))
    assert max(entry[3] for entry in cluster.log if len(entry) == 4) == (most or 1)


def test_the_last_size_is_the_most_also_where_that_is_no_double():
    assert sizes(2, 7) == [2, 4, 7]
    assert sizes(3, 3) == [3]
    assert sizes(1, 8) == [1, 2, 4, 8]


def test_a_growth_that_is_not_granted_is_withdrawn_and_asked_for_smaller_and_less_often(monkeypatch):
    monkeypatch.setattr("tunelight.schedulers.elastic._PATIENCE_S", 0.0)  # an epoch is a second here
    cluster, heard = told(make(max_workers=8, cooldown=1, max_t=27))
    cluster.grants = False
    cluster.run(curves(1))
    (gang,) = heard["00000"]
    asked = [one.workers for one in gang.told if isinstance(one, Resize)]
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
    growth = growing(most=8, slots=8)
    first, second = going(growth, 0), going(growth, 1)
    for member in (first, second):
        for at in (1, 2):
            hear(growth, member, at, 10.0 * at, 1)
        growth.adjust(None, member, 20, 20, alone=True)
    assert (first.target_workers, second.target_workers) == (4, 4)
    growth._members.move(second, State.ENDED)
    growth.gone(second)
    hear(growth, first, 3, 25.0, 4)
    growth.adjust(None, first, 20, 20, alone=True)
    assert first.target_workers == 8


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
    cluster = Cluster(make(max_workers=8), slots=8, max_t=27)
    released = []
    vars(cluster)["_cleanup_cached_actors"] = lambda force_all: released.append(bool(force_all))
    cluster.run(curves(3))
    assert released
    assert all(released)


def test_a_trial_starts_only_while_it_can_come_as_far_as_the_front():
    now = [0.0]
    elastic = make(deadline_s=100.0, clock=lambda: now[0])
    cluster: Any = Cluster(elastic, slots=2, max_t=27)
    elastic.clock = lambda: now[0]
    cluster._add(0, curves(1)[0])
    assert elastic.admits()
    trial = cluster.trials[0]
    trial.set_status(Trial.RUNNING)
    for at in range(1, 10):
        elastic.on_trial_result(cluster, trial, {"training_iteration": at, "loss": 0.1, "time_total_s": 5.0 * at})
    now[0] = 54.0  # 46 s are left, and 9 epochs of 5 s bring one to the front
    assert elastic.admits()
    now[0] = 56.0
    assert not elastic.admits()


def rung_trial(elastic: ElasticASHA, name: str) -> Any:
    trial: Any = Trial("made", stub=True, trial_id=name)
    elastic.on_trial_add(nobody(), trial)
    return trial


def nobody() -> Any:
    return SimpleNamespace(get_trials=list)


def reported(elastic: ElasticASHA, trial: Any, at: int, loss: float) -> str:
    trial.set_status(Trial.RUNNING)
    answer: str = elastic.on_trial_result(nobody(), trial, {"loss": loss, "training_iteration": at})
    if answer == "PAUSE":
        trial.set_status(Trial.PAUSED)
    return answer


def test_a_trial_whose_gang_is_lost_while_it_writes_the_checkpoint_of_its_pause_does_not_pass_the_rung():
    elastic = make()
    better, worse = rung_trial(elastic, "better"), rung_trial(elastic, "worse")
    reported(elastic, better, 1, 0.1)
    worse.set_status(Trial.RUNNING)
    assert elastic.on_trial_result(nobody(), worse, {"loss": 0.5, "training_iteration": 1}) == "PAUSE"
    for _ in range(2):  # before it was paused, and before it reports again
        elastic.on_trial_error(nobody(), worse)
        worse.set_status(Trial.PENDING)
        elastic.on_trial_add(nobody(), worse)
    assert elastic.choose_trial_to_run(nobody()) is not worse
    assert reported(elastic, worse, 2, 0.5) == "PAUSE"


def test_a_replay_of_reports_knows_who_was_promoted():
    elastic = make()
    trials = [rung_trial(elastic, name) for name in ("first", "second")]
    assert [reported(elastic, trial, 1, 0.1) for trial in trials] == ["PAUSE", "PAUSE"]
    assert reported(elastic, trials[0], 2, 0.1) == "CONTINUE"  # promoted by the live scheduler alone
    rung = elastic._promotion.rungs[0]
    assert (rung.promoted, rung.waiting()) == ({"first"}, ["second"])


def test_where_nobody_says_how_long_trials_are_none_is_stopped_for_its_length():
    cluster = Cluster(ElasticASHA("loss", "min", grace_period=1, reduction_factor=3), max_t=90)
    cluster.run(curves(2))
    assert max(cluster.reached(number) for number in range(2)) == 90


# --- what holds in every sweep: random curves, failures, clusters and settings


class Watched:
    """Stands before an ElasticASHA and checks, after whatever it is told, whom it has promoted."""

    def __init__(self, inner: ElasticASHA) -> None:
        self.__dict__["inner"] = inner
        self.__dict__["known"] = set()
        self.__dict__["closed"] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not name.startswith(("on_", "choose")):
            return found

        def call(*told: Any) -> Any:
            answer = found(*told)
            self.check()
            if answer == "CONTINUE":
                self.check_promoted(told[1].trial_id)
            return answer

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def check(self) -> None:
        added = sum(1 for _ in self.inner._members)
        for rung in self.inner._promotion.rungs:
            filed, then = self.closed.get(rung.milestone, (len(rung.filed), added))
            same = filed == len(rung.filed)
            assert same or then < added, "a trial that was known came to a rung that counted as closed"
            for trial_id in rung.promoted:
                if (rung.milestone, trial_id) not in self.known:
                    self.known.add((rung.milestone, trial_id))
                    best = top_count(len(rung.filed), self.inner._promotion.eta)
                    assert rung.rank(trial_id) < max(1, best)
                    if rung.rank(trial_id) >= best:
                        self.closed[rung.milestone] = (len(rung.filed), added)

    def check_promoted(self, trial_id: str) -> None:
        member = self.inner._members.get(trial_id)
        if member.progress < self.inner._promotion.max_t:
            assert all(trial_id in rung.promoted for rung in self.inner._promotion.rungs[: member.target])


def _curve(values: list[float], fails_at: int | None, t: int) -> float:
    if t == fails_at:
        raise RuntimeError("the training code raised")
    return values[(t - 1) % len(values)]


CURVES = st.lists(
    st.builds(
        functools.partial,
        st.just(_curve),
        st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5, math.nan]), min_size=1, max_size=4),
        st.one_of(st.none(), st.none(), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=25,
)


SCHEDULER = st.fixed_dictionaries(
    {
        "max_workers": st.sampled_from([None, 1, 2, 4, 7]),
        "reduction_factor": st.sampled_from([1.5, 2, 3, 4]),
        "max_t": st.sampled_from([1, 5, 9]),
        "cooldown": st.integers(0, 5),
        "deadline_s": st.sampled_from([None, 5.0, 30.0]),
    }
)
CLUSTER = st.fixed_dictionaries(
    {
        "slots": st.integers(3, 12),
        "workers": st.integers(1, 3),
        "skip": st.integers(1, 3),
        "grants": st.booleans(),
        "pending_at_once": st.integers(1, 4),
        "every_s": st.sampled_from([0.0, 0.0, 1.6, 2.5]),
        "seed": st.integers(0, 3),
    }
)


@settings(max_examples=150, deadline=None)
@given(curves=CURVES, scheduler=SCHEDULER, cluster=CLUSTER)
def test_it_ends_promotes_only_the_best_and_gives_no_slot_twice(curves, scheduler, cluster):
    watched = Watched(ElasticASHA("loss", "min", **scheduler))
    max_t = scheduler["max_t"]
    ran = Cluster(watched, max_t=max_t, **cluster).run(curves, steps=2_000)
    assert {trial.status for trial in ran.trials} <= {Trial.TERMINATED, Trial.ERROR}
    assert ran.used() == 0
    assert scheduler["deadline_s"] is not None or len(ran.trials) == len(curves)
    paused = {entry[1] for entry in ran.log if "PAUSE" in entry[2:]}
    assert paused <= {entry[1] for entry in ran.log if entry[0] in ("promoted", "ended", "failed")}
