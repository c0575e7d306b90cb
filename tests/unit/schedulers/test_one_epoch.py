"""OneEpoch: all trials for a few epochs, the best few to the end, and what happens on bad days."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.experiment import Trial

from tests.unit.tune import Cluster, Curve, curves
from tunelight.errors import SettingsError
from tunelight.schedulers import OneEpoch
from tunelight.schedulers.choose import build_scheduler
from tunelight.settings import Settings


def make(**options: Any) -> OneEpoch:
    return OneEpoch(**{"metric": "loss", "mode": "min", "max_t": 9, **options})


def flat(*losses: float, fail: Sequence[int] = (), at: int = 2) -> list[Curve]:
    """Return curves of one loss each; those of the numbers in ``fail`` raise at report ``at``."""
    return [functools.partial(_flat, loss, at if number in fail else None) for number, loss in enumerate(losses)]


def _flat(loss: float, fails_at: int | None, t: int) -> float:
    if t == fails_at:
        raise RuntimeError("the training code raised")
    return loss


def reached(cluster: Cluster) -> list[int]:
    return [cluster.reached(number) for number in range(len(cluster.trials))]


# --- whole sweeps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "keep", "slots"), [(1, 3, 4), (2, 1, 1), (3, 4, 2), (1, 5, 20)])
def test_all_train_for_some_epochs_and_the_best_to_the_end(epochs, keep, slots):
    given_curves = curves(14)
    cluster = Cluster(make(epochs=epochs, keep=keep), slots=slots).run(given_curves)
    best = sorted(range(14), key=lambda number: given_curves[number](epochs))[:keep]
    assert reached(cluster) == [9 if number in best else epochs for number in range(14)]


def test_the_best_go_on_at_the_same_time_and_only_when_all_have_come():
    cluster = Cluster(make(), slots=4).run(curves(14))
    order = [entry[0] for entry in cluster.log]
    first_promoted = order.index("promoted")
    assert sum(entry[0] == 1 for entry in cluster.log[:first_promoted]) == 14
    assert order.count("promoted") == 3
    assert order[: order.index(4)].count("promoted") == 3  # at a step each, in which one event comes


@pytest.mark.parametrize(("options", "n"), [({"keep": 5}, 3), ({"epochs": 9}, 8), ({"max_t": 1}, 4)])
def test_where_there_is_nobody_to_leave_out_all_train_to_the_end(options, n):
    scheduler = make(**options)
    end = options.get("max_t", 9)
    assert reached(Cluster(scheduler, max_t=end).run(curves(n))) == [end] * n


def test_of_equal_trials_the_first_to_come_go_on():
    assert reached(Cluster(make(keep=2), slots=1).run(flat(*[0.5] * 6))) == [9, 9, 1, 1, 1, 1]


def test_trials_that_fail_or_diverge_before_they_are_compared_take_nobody_s_place():
    given_curves = [*flat(0.1, 0.2, fail=[0, 1], at=1), *flat(math.nan, math.inf, 0.3, 0.4, 0.5)]
    cluster = Cluster(make(keep=2), slots=2).run(given_curves)
    assert reached(cluster)[2:] == [1, 1, 9, 9, 1]


def test_the_next_best_take_the_places_of_those_that_fail_as_long_as_the_reserve_lasts():
    losses = [number / 10 for number in range(8)]
    assert reached(Cluster(make(keep=2), slots=2).run(flat(*losses, fail=[0], at=5))) == [5, 9, 9, 1, 1, 1, 1, 1]
    cluster = Cluster(make(keep=2), slots=2).run(flat(*losses, fail=range(8), at=5))
    assert reached(cluster) == [5, 5, 5, 5, 1, 1, 1, 1]


def test_a_trial_that_diverges_later_makes_room_for_the_next_best():
    late: list[Curve] = [lambda t: 0.1 if t < 4 else math.nan, *flat(0.2, 0.3, 0.4)]
    assert reached(Cluster(make(keep=2), slots=2).run(late)) == [4, 9, 9, 1]


def test_the_sweep_waits_for_a_search_that_takes_its_time():
    given_curves = curves(8)
    cluster = Cluster(make(keep=2), slots=4, every_s=3.0).run(given_curves)
    best = sorted(range(8), key=lambda number: given_curves[number](1))[:2]
    assert {cluster.reached(number) for number in best} == {9}


def test_survivors_grow_and_gangs_without_a_trial_are_ended():
    cluster = Cluster(make(max_workers=4, cooldown=1, max_t=27), slots=8, max_t=27)
    cluster.run(curves(12))
    sizes = {entry[1]: entry[3] for entry in cluster.log if len(entry) == 4}
    assert max(sizes.values()) == 4
    fixed = Cluster(make(), slots=4)
    ended_at: list[int] = []
    vars(fixed)["_cleanup_cached_actors"] = lambda force_all: ended_at.append(len(fixed.log))
    fixed.run(curves(12))
    third = [number for number, entry in enumerate(fixed.log) if entry[0] == "promoted"][2]
    assert ended_at
    assert min(ended_at) > third


@pytest.mark.parametrize("keep", [1, 2])
def test_a_trial_starts_only_while_the_best_could_be_trained_to_the_end(keep):
    cluster = Cluster(make(deadline_s=50.0, keep=keep), slots=1).run(curves(60))
    assert 10 < len(cluster.trials) < 35
    assert reached(cluster).count(9) == keep
    assert cluster.now < 50.0


# --- one event after the other --------------------------------------------------------------------------------


class Hand:
    """A controller in a test's hand: nothing happens but what it says. ``made``: whether the search has made all."""

    def __init__(self, scheduler: OneEpoch) -> None:
        self.scheduler = scheduler
        self.search_alg = SimpleNamespace(all_made=True)
        self.trials: dict[str, Any] = {}

    def add(self, *names: str) -> None:
        for name in names:
            trial = self.trials.setdefault(name, Trial("made", stub=True, trial_id=name))
            self.scheduler.on_trial_add(self, trial)  # type: ignore[arg-type]

    def report(self, name: str, at: int, loss: float) -> str:
        trial = self.trials[name]
        trial.set_status(Trial.RUNNING)
        result = {"loss": loss, "training_iteration": at}
        decision: str = self.scheduler.on_trial_result(self, trial, result)  # type: ignore[arg-type]
        trial.set_status({"PAUSE": Trial.PAUSED, "STOP": Trial.TERMINATED}.get(decision, Trial.RUNNING))
        if decision == "STOP":
            self.scheduler.on_trial_complete(self, trial, result)  # type: ignore[arg-type]
        return decision

    def end(self, name: str, **result: Any) -> None:
        self.scheduler.on_trial_complete(self, self.trials[name], {"training_iteration": 9, **result})  # type: ignore[arg-type]
        self.trials[name].set_status(Trial.TERMINATED)

    def stop_trial(self, trial: Trial) -> None:
        self.scheduler.on_trial_remove(self, trial)  # type: ignore[arg-type]
        trial.set_status(Trial.TERMINATED)

    def choose(self, steps: int = 3) -> str | None:
        """Return the trial that starts next, of what a few of Tune's steps choose."""
        for _ in range(steps):
            chosen: Any = self.scheduler.choose_trial_to_run(self)  # type: ignore[arg-type]
            if chosen is not None:
                chosen.set_status(Trial.RUNNING)
                return str(chosen.trial_id)
        return None

    def states(self) -> dict[str, str]:
        return {name: trial.status for name, trial in self.trials.items()}


def at_the_rung(keep: int = 2, n: int = 5) -> Hand:
    """Return a sweep whose trials a, b, c ... have paused in the order of their losses."""
    hand = Hand(make(keep=keep))
    names = [chr(ord("a") + number) for number in range(n)]
    hand.add(*names)
    for number, name in enumerate(names):
        hand.report(name, 1, number / 10)
    return hand


def test_who_cannot_be_among_the_best_is_stopped_at_once_and_the_reserve_when_the_best_have_ended():
    hand = at_the_rung(keep=2)
    assert hand.states() == {**dict.fromkeys("abcd", Trial.PAUSED), "e": Trial.TERMINATED}
    assert [hand.choose() for _ in range(3)] == ["a", "b", None]
    assert {hand.trials[name].status for name in "cd"} == {Trial.PAUSED}
    hand.end("a", loss=0.0)
    assert hand.choose() is None
    assert hand.trials["c"].status == Trial.PAUSED
    hand.end("b", loss=0.0)
    assert hand.choose() is None
    assert {hand.trials[name].status for name in "cd"} == {Trial.TERMINATED}


def test_a_trial_that_fails_as_a_sweep_of_tunelight_s_reports_it_makes_room():
    hand = at_the_rung(keep=1)
    assert hand.choose() == "a"
    hand.end("a", **{"_tunelight/error/state": "OOM"})
    assert hand.choose() == "b"


def test_a_trial_that_is_started_again_after_a_failure_keeps_its_place():
    hand = at_the_rung(keep=1)
    assert hand.choose() == "a"
    hand.scheduler.on_trial_error(hand, hand.trials["a"])  # type: ignore[arg-type]
    hand.trials["a"].set_status(Trial.PENDING)
    hand.add("a")
    assert hand.choose() is None
    assert hand.report("a", 2, 0.0) == "CONTINUE"


def test_a_paused_trial_that_somebody_stops_makes_room():
    hand = at_the_rung(keep=1)
    hand.choose()
    hand.stop_trial(hand.trials["b"])
    hand.end("a", **{"_tunelight/error/state": "ERROR"})
    assert hand.choose() is None
    assert "PAUSED" not in hand.states().values()


@pytest.mark.parametrize(("loss", "goes_on"), [(0.05, True), (0.15, False), (0.9, False)])
def test_a_trial_that_is_added_later_goes_on_if_it_is_among_the_best_of_all(loss, goes_on):
    hand = at_the_rung(keep=2)
    assert [hand.choose(), hand.choose()] == ["a", "b"]
    hand.add("late")
    assert hand.choose() is None
    hand.report("late", 1, loss)
    assert hand.choose() == ("late" if goes_on else None)


def test_a_place_is_kept_for_a_trial_that_is_added_before_all_have_gone_on():
    hand = at_the_rung(keep=2)
    assert hand.choose() == "a"
    hand.add("late")
    assert hand.choose() is None
    hand.report("late", 1, 0.05)
    assert [hand.choose(), hand.choose()] == ["late", None]


def test_while_the_search_is_silent_the_reserve_is_ended_and_then_only_the_best_goes_on():
    hand = at_the_rung(keep=2)
    hand.search_alg.all_made = False
    assert [hand.choose(steps=1), hand.choose(steps=1)] == [None, None]
    assert [name for name, status in hand.states().items() if status == Trial.PAUSED] == ["a", "b"]
    assert [hand.choose(), hand.choose()] == ["a", None]
    hand.search_alg.all_made = True
    assert [hand.choose(), hand.choose()] == ["b", None]


def test_reasons_are_places_at_the_report_and_at_the_end_for_those_that_waited():
    hand = Hand(make(keep=1))
    hand.add(*"abcd")
    reason = hand.scheduler.reason
    hand.report("a", 1, 0.4)
    assert reason("a") == "place 1 of 1 at rung 1; the best goes on"
    hand.report("b", 1, 0.2)
    hand.report("c", 1, 0.1)
    assert hand.choose() is None
    assert hand.trials["a"].status == Trial.TERMINATED
    assert reason("a") == "place 3 of 3 at rung 1; the best goes on"
    result = {"loss": 0.3, "training_iteration": 1}
    assert hand.scheduler.on_trial_result(hand, hand.trials["d"], result) == "STOP"  # type: ignore[arg-type]
    assert reason("d") == "place 3 of 4 at rung 1; the best goes on"
    hand.scheduler.on_trial_complete(hand, hand.trials["d"], result)  # type: ignore[arg-type]
    assert [hand.choose(), reason("c")] == ["c", None]
    assert hand.report("c", 2, math.nan) == "STOP"


def test_a_restored_scheduler_knows_who_failed(tmp_path):
    hand = at_the_rung(keep=1)
    hand.choose()
    hand.end("a", **{"_tunelight/error/state": "OOM"})
    hand.scheduler.save(str(tmp_path / "state"))
    again = make(keep=1)
    again.restore(str(tmp_path / "state"))
    restored = Hand(again)
    restored.trials["b"] = hand.trials["b"]
    restored.add("b")
    assert restored.choose() == "b"
    with pytest.raises(SettingsError, match=r"'one_epoch' with other settings than this one: keep=2 \(saved: 1\)"):
        make(keep=2).restore(str(tmp_path / "state"))


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"keep": 0}, "OneEpoch's keep must be a whole number of 1 or more, and is 0."),
        ({"epochs": 1.5}, "OneEpoch's epochs must be a whole number of 1 or more, and is 1.5."),
        ({"epochs": 10}, "OneEpoch's epochs must be at most max_t, and is 10 with max_t=9"),
        ({"max_t": "auto"}, "is 'auto': that is for ElasticASHA"),
        ({"cooldown": -1}, "OneEpoch's cooldown must be"),
        ({"mode": "low"}, "OneEpoch's mode must be 'min' or 'max'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, said):
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
        make(**wrong)


def test_by_name_it_takes_the_sweep_s_epochs_and_other_names_are_guessed():
    judged: dict[str, Any] = {"metric": "loss", "mode": "min", "max_epochs": 12}
    built = build_scheduler(Settings(scheduler={"name": "one_epoch", "epochs": 2, "keep": 4}, **judged))
    assert isinstance(built, OneEpoch)
    assert built.milestones() == [2]
    assert built._settings() == {"metric": "loss", "mode": "min", "epochs": 2, "keep": 4, "max_t": 12}
    for name in ("1-epoch", "i_epoch", "one_epochs"):
        with pytest.raises(SettingsError, match="'one_epoch'"):
            build_scheduler(Settings(scheduler=name, **judged))
    with pytest.raises(SettingsError, match=r"scheduler one_epoch has no 'keeps'.*'keep'"):
        build_scheduler(Settings(scheduler={"name": "one_epoch", "keeps": 4}, **judged))


# --- any sweep ------------------------------------------------------------------------------------------------

LOSSES = st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan])
FAILS = st.sampled_from([None, None, 1, 2, 4])
CLUSTER = st.fixed_dictionaries(
    {
        "slots": st.integers(3, 9),
        "workers": st.integers(1, 3),
        "grants": st.booleans(),
        "pending_at_once": st.integers(1, 4),
        "seed": st.integers(0, 3),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    trials=st.lists(st.tuples(LOSSES, FAILS), min_size=1, max_size=20),
    epochs=st.integers(1, 3),
    keep=st.integers(1, 4),
    max_workers=st.sampled_from([None, 2, 7]),
    cluster=CLUSTER,
)
def test_whatever_fails_the_best_of_the_others_are_trained_to_the_end(trials, epochs, keep, max_workers, cluster):
    given_curves: list[Curve] = [functools.partial(_flat, *trial) for trial in trials]
    scheduler = make(epochs=epochs, keep=keep, max_workers=max_workers)
    ran = Cluster(scheduler, **cluster).run(given_curves, steps=3_000)
    assert {trial.status for trial in ran.trials} <= {Trial.TERMINATED, Trial.ERROR}
    assert ran.used() == 0
    came = [int(entry[1]) for entry in ran.log if entry[0] == epochs and len(entry) == 4]
    ranked = sorted((n for n in came if not math.isnan(trials[n][0])), key=lambda n: (trials[n][0], came.index(n)))
    tried = ranked[: 2 * keep]  # those behind them were stopped
    finish = [number for number in tried if trials[number][1] is None][:keep]
    assert {number for number in range(len(trials)) if ran.reached(number) == 9} == set(finish)
