"""Repetitions on virtual time, by the same code as in a live sweep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.world import simulate
from tests.world.curves import SEED_KEY
from tests.world.sources import recorded


@pytest.mark.parametrize("scheduler", ["asha", "elastic_asha", "fifo", "hyperband", "median_stopping_rule"])
def test_the_best_are_trained_to_the_end_with_the_other_recorded_seeds(scheduler: str) -> None:
    plain = simulate("digits", scheduler, num_samples=20, seed=1)
    found = simulate("digits", scheduler, num_samples=20, seed=1, repeats={"top": 3, "repeats": 3})
    searched = [trial for trial in found.trials if trial.repeats is None]
    again = [trial for trial in found.trials if trial.repeats is not None]
    assert [(one.id, one.reports, one.best) for one in searched] == [
        (one.id, one.reports, one.best) for one in plain.trials
    ]
    assert len({trial.repeats for trial in again}) == len(found.repeated) == 3
    longest = max(trial.reports for trial in searched)
    assert {trial.reports for trial in again} == {longest}
    assert {trial.state for trial in again} == {"FINISHED"}
    assert found.worker_seconds > plain.worker_seconds
    first = found.repeated[0]
    assert len(set(first.values)) == first.n >= 2
    assert found.chosen is not None
    assert found.chosen.id == first.trial
    assert plain.chosen is not None
    assert plain.chosen.best == plain.best


def test_a_recorded_seed_is_chosen_by_number_and_a_repetition_gets_the_next() -> None:
    curves: Any = recorded("digits")
    config = curves.config(5, 0)
    trainings = [curves.curve({**config, SEED_KEY: seed}).metrics["loss"] for seed in range(4)]
    assert trainings[0] != trainings[1] != trainings[2]
    assert trainings[3] == trainings[0]
    others = [curves.curve(curves.again(config, number)).metrics["loss"] for number in (1, 2)]
    assert curves.curve(config).metrics["loss"] not in others
    assert others[0] != others[1]
