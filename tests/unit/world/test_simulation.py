"""Whole simulations, and what they must always be; benchmarks/fidelity.py holds their times to those of real sweeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

from tests.curves import tiny_table
from tests.world import Costs, simulate
from tests.world.curves import recorded
from tests.world.run import FirstCome
from tunelight.schedulers import ASHA
from tunelight.schedulers.wrapper import SweepScheduler

CURVES = tiny_table()
MAKERS: dict[str, Any] = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHA(max_t=27, reduction_factor=3),
    "elastic_asha": lambda: "elastic_asha",
    "elastic_asha of many rungs": lambda: {"name": "elastic_asha", "reduction_factor": 1.5, "cooldown": 0},
    "ray_asha": lambda: AsyncHyperBandScheduler(max_t=27, grace_period=1),
    "hyperband": lambda: HyperBandScheduler(max_t=27),
    "median": lambda: MedianStoppingRule("training_iteration", grace_period=3, min_samples_required=3),
    "resources": lambda: ResourceChangingScheduler(
        AsyncHyperBandScheduler(max_t=27, grace_period=1), DistributeResources(add_bundles=True)
    ),
}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(MAKERS)),
    slots=st.integers(4, 16),
    trials=st.integers(1, 12),
    elastic=st.booleans(),
    seed=st.integers(0, 3),
)
def test_whatever_is_simulated_ends_repeats_itself_and_overfills_nothing(
    name: str, slots: int, trials: int, elastic: bool, seed: int
):
    def run() -> Any:
        return simulate(
            CURVES,
            scheduler=MAKERS[name](),
            num_samples=trials,
            workers=(1, 4) if elastic else 2,
            slots=slots,
            max_epochs=9,
            seed=seed,
            costs=Costs(noise=0.2, resize_s=0.2, checkpoint_s=0.1),
        )

    one, two = run(), run()
    events, usage = one.world.happened, one.world.usage
    assert (events, usage) == (two.world.happened, two.world.usage)
    assert len(one.trials) == trials
    assert {trial.state for trial in one.trials} <= {"FINISHED", "STOPPED"}
    for trial in one.trials:
        reports = [event.detail[0] for event in events if (event.what, event.trial) == ("report", trial.trial_id)]
        assert reports == list(range(1, trial.reports + 1))
        assert trial.ended_s is not None
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert all(0 <= use.busy <= use.held <= slots for use in usage)
    assert 0 <= one.tail_idle_share <= 1
    assert one.regret() >= 0


def test_who_comes_first_is_chosen_as_rays_controller_would(monkeypatch: pytest.MonkeyPatch):
    def run() -> Any:
        return [simulate(CURVES, MAKERS[name](), slots=6).world.happened for name in ("fifo", "asha", "ray_asha")]

    quick = run()
    monkeypatch.setattr(FirstCome, "choose_trial_to_run", SweepScheduler.choose_trial_to_run)
    assert run() == quick


@pytest.mark.parametrize("scheduler", ["asha", "elastic_asha", "fifo", "hyperband", "median_stopping_rule"])
def test_the_best_are_trained_to_the_end_with_the_other_recorded_seeds_and_the_search_is_as_without(scheduler: str):
    digits = recorded("digits")
    plain = simulate(digits, scheduler, num_samples=20, seed=1)
    found = simulate(digits, scheduler, num_samples=20, seed=1, repeats={"top": 3, "repeats": 3})
    searched, again = found.trials[:20], found.trials[20:]
    assert [(one.reports, one.best) for one in searched] == [(one.reports, one.best) for one in plain.trials]
    assert len(found.repeated) == 3
    assert len(again) >= 6  # another may come to be among the best
    assert {trial.reports for trial in again} == {max(trial.reports for trial in searched)}
    ended = "STOPPED" if scheduler == "hyperband" else "FINISHED"  # it also stops trials at their last epoch
    assert {trial.state for trial in again} == {ended}
    first = found.repeated[0]
    assert len(set(first.values)) == first.n >= 2
    assert found.chosen.trial_id == first.trial
    assert plain.chosen.best == plain.best
