"""Sweeps on the simulated cluster of benchmarks, whose times benchmarks/fidelity.py holds to those of real ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.world import simulate
from tests.world.curves import recorded
from tests.world.run import FirstCome
from tunelight.schedulers.wrapper import SweepScheduler


def test_who_comes_first_is_chosen_as_rays_controller_would(monkeypatch: pytest.MonkeyPatch):
    names = ("fifo", "asha", "asynchyperband")

    def run() -> Any:
        return [simulate(recorded("digits"), name, num_samples=20, slots=6).world.happened for name in names]

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
