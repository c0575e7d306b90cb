"""The wrapper of a sweep's scheduler spares repetitions: they compete with nobody, and nobody with them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tests.unit.schedulers.test_asha import STOP, TUNE, add, make_asha, report
from tunelight.compat.ray import stub_trial
from tunelight.errors import SettingsError
from tunelight.messages import RESULT_KEY, Continue
from tunelight.schedulers import ASHA, ElasticASHA, GangPBT, GangScheduler, SweepFacts
from tunelight.schedulers.base import adapted
from tunelight.schedulers.choose import build_scheduler, judged_by
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


def test_a_branch_that_waits_comes_before_the_schedulers_choice() -> None:
    sparing, (first, branch) = spared(FIFOScheduler()), (stub_trial("a", {}), stub_trial("b", {}))
    controller = SimpleNamespace(get_trials=lambda: [first, branch])
    branch.began_at = 3
    for trial in (first, branch):
        trial.status = "PENDING"
        sparing.on_trial_add(controller, trial)
    assert sparing.waiting_branches == [branch]
    assert sparing.choose_trial_to_run(controller) is branch
    branch.status = "RUNNING"
    assert sparing.choose_trial_to_run(controller) is first
    branch.status = "PENDING"  # its head has died: it waits as others do
    assert sparing.waiting_branches == []


def test_a_trial_that_yields_its_gang_waits_aside_and_says_why() -> None:
    sparing = spared(make_asha(grace_period=1, reduction_factor=4))
    trial = add(sparing, "a")
    assert not sparing.on_trial_yield(trial, {"training_iteration": 1, "_tunelight": {"notes": []}})
    assert sparing.on_trial_yield(trial, {"training_iteration": 1, "_tunelight": {"yields": True}})
    assert sparing.aside == {"a": trial}
    assert sparing.reason("a") == "leaves its workers to a branch, and goes on when there is room"


def test_a_scheduler_that_pauses_trials_makes_room_for_a_branch_itself() -> None:
    class Pausing(GangScheduler):
        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            return None

    sparing = spared(Pausing())
    sparing.scheduler.pauses = True
    branch = stub_trial("b", {})
    branch.began_at, branch.status = 3, "PENDING"
    controller = SimpleNamespace(get_trials=lambda: [branch])
    sparing.on_trial_add(controller, branch)
    assert sparing.choose_trial_to_run(controller) is None


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: ElasticASHA(**JUDGED, max_t=9, reduction_factor=3),
        lambda: GangPBT(**MUTATING, max_lead=1),
        lambda: HyperBandScheduler(**JUDGED, max_t=5, reduction_factor=3),
        lambda: PopulationBasedTraining("training_iteration", **MUTATING),
    ],
)
def test_a_trial_that_writes_no_checkpoint_trains_on_where_it_was_to_pause(scheduler: Any) -> None:
    told: list[tuple[str, str]] = []
    outer = SweepScheduler(adapted(scheduler()), note=lambda *said: told.append(said))
    trials = [stub_trial(name, {"x": 1}) for name in ("a", "b", "c", "d", "e", "f")]
    tune: Any = SimpleNamespace(get_trials=lambda: trials, get_live_trials=lambda: trials, search_alg=None)
    tune._resource_updater, tune._schedule_trial_save = None, lambda *_, **__: None
    for trial in trials:
        trial.status = "PENDING"
        outer.on_trial_add(tune, trial)
    first = trials[0]
    first.status = "RUNNING"
    for number in range(1, 9):
        result = {"training_iteration": number, "loss": 9.0 - number, f"{RESULT_KEY}/pausable": False}
        assert outer.on_trial_result(tune, first, result) == TrialScheduler.CONTINUE, number
    assert told == [("trains on in place of a pause: its training code writes no checkpoints", "a")]
    outer.on_trial_complete(tune, first, result)


@pytest.mark.parametrize("name", ["elastic_asha", "gang_pbt", "hyperband"])
def test_schedulers_that_pause_are_refused_where_no_checkpoints_are_written(name: str) -> None:
    with pytest.raises(SettingsError, match="checkpoints=None has them write none"):
        build_scheduler(Settings(metric="loss", model=dict, checkpoints=None, scheduler=name))
    build_scheduler(Settings(metric="loss", model=dict, checkpoints=None, scheduler="asha"))


# --- what a sweep asks of a scheduler: its defaults, and the adapter of schedulers on Ray's classes


def pbt() -> Any:
    return PopulationBasedTraining(metric="loss", mode="min", hyperparam_mutations={"lr": [1, 2]})


class Mine(TrialScheduler):
    """A user's scheduler on Ray's class alone: it pauses each trial once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard: list[Any] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self.heard.append(trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        return "chosen"


def test_a_scheduler_that_overrides_nothing_has_the_defaults_of_the_contract() -> None:
    plain: Any = GangScheduler()
    trial = add(plain, "a")
    assert plain.on_trial_result(TUNE, trial, {"loss": 1.0}) == TrialScheduler.CONTINUE
    assert not any((plain.resizes, plain.pauses, plain.changes_configs, plain.milestones(), plain.reason("a")))
    assert (plain.replayable, plain.admits(), plain.initial_decision()) == (True, True, Continue(until=1))
    assert adapted(plain) is plain


def test_calls_of_tune_go_to_the_scheduler_that_is_adapted() -> None:
    mine = Mine()
    scheduler: Any = adapted(mine)
    trial = add(scheduler, "a")
    assert mine.heard == ["a"]
    assert scheduler.on_trial_result(TUNE, trial, {}) == TrialScheduler.PAUSE
    assert scheduler.choose_trial_to_run(TUNE) == "chosen"
    assert scheduler.set_search_properties("loss", "min")
    assert (scheduler.metric, mine.metric, scheduler.supports_buffered_results) == ("loss", "loss", True)
    with pytest.raises(NotImplementedError):
        scheduler.on_trial_remove(TUNE, trial)


@pytest.mark.parametrize(
    ("scheduler", "until", "replayable", "changes"),
    [
        (FIFOScheduler(), None, True, False),
        (Mine(), 1, True, False),
        (AsyncHyperBandScheduler(), 1, True, False),
        (MedianStoppingRule(), 1, True, False),
        (HyperBandScheduler(), 1, False, False),
        (ResourceChangingScheduler(), 1, False, False),
        (pbt(), 1, False, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_others_schedulers_do_is_known_by_their_class(
    scheduler: Any, until: int | None, replayable: bool, changes: bool
) -> None:
    found = adapted(scheduler)
    assert found.inner is scheduler
    assert found.initial_decision() == Continue(until=until)
    assert (found.replayable, found.changes_configs, found.resizes) == (replayable, changes, False)


def test_only_what_a_scheduler_was_not_made_with_is_set_on_it() -> None:
    settings = Settings(metric="loss", mode="max")
    assert judged_by(adapted(AsyncHyperBandScheduler(metric="loss", mode="max")), settings) == {}
    assert judged_by(adapted(FIFOScheduler()), settings) == {"metric": "loss", "mode": "max"}
    assert judged_by(ASHA(metric="loss"), settings) == {"mode": "max"}


def test_the_facts_of_its_sweep_are_a_scheduler_s_before_its_first_trial() -> None:
    class Told(GangScheduler):
        pass

    settings = Settings(scheduler=Told(), workers=(1, 4), datasets={"train": {"parquet": "x"}}, data_cpus=2)
    told = build_scheduler(settings, {"lr": 1}, clock=lambda: 7.0)
    assert told is not settings.scheduler
    assert (told.sweep.domains, told.sweep.max_workers, told.sweep.data_cpus) == ({"lr": 1}, 4, 2)
    assert told.sweep.clock is not None
    assert told.sweep.clock() == 7.0
    assert build_scheduler(Settings(scheduler=Told(), workers=4)).sweep == SweepFacts(on_change=SweepFacts.on_change)


@pytest.mark.parametrize(("own", "workers", "most"), [(None, (1, 4), 4), (2, (1, 4), 2), (8, (1, 4), 4), (8, 4, None)])
def test_gangs_grow_to_the_smaller_limit_and_not_at_all_where_their_size_is_fixed(
    own: int | None, workers: Any, most: int | None
) -> None:
    elastic: Any = build_scheduler(Settings(scheduler=ElasticASHA(max_workers=own), workers=workers))
    assert elastic._growth.max_workers == most


@pytest.mark.parametrize(
    "scheduler",
    [MedianStoppingRule(time_attr="training_iteration", grace_period=9), ASHA(max_t=20, grace_period=9)],
    ids=["ray's", "ours"],
)
def test_a_grace_that_no_trial_outlives_is_an_error(scheduler: Any) -> None:
    with pytest.raises(SettingsError, match=r"grace_period=9 is larger than max_epochs=8"):
        build_scheduler(Settings(scheduler=scheduler, max_epochs=8))
    build_scheduler(Settings(scheduler=scheduler, max_epochs=9))
    build_scheduler(Settings(scheduler=scheduler))


def test_a_grace_in_other_units_is_not_compared() -> None:
    build_scheduler(Settings(scheduler=MedianStoppingRule(grace_period=600), max_epochs=8))


@pytest.mark.parametrize("kind", [ASHA, ElasticASHA, GangPBT])
def test_a_state_is_not_restored_under_another_metric(kind: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "state.json")
    kind(metric="loss", mode="min").save(path)
    kind().restore(path)
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
    said = rf"was saved by {kind.__name__} with other settings .*metric='accuracy' \(saved: 'loss'\)"
    with pytest.raises(SettingsError, match=said):
        kind(metric="accuracy", mode="min").restore(path)
