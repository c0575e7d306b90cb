"""What a sweep asks of a scheduler: its defaults, and the adapter of schedulers on Ray's classes."""

from __future__ import annotations

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

from tests.unit.schedulers.test_asha import TUNE, add
from tunelight.errors import SettingsError
from tunelight.messages import Continue
from tunelight.schedulers import ASHA, ElasticASHA, GangPBT, GangScheduler, SweepFacts
from tunelight.schedulers.base import adapted
from tunelight.schedulers.choose import build_scheduler, judged_by
from tunelight.settings import Settings


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
