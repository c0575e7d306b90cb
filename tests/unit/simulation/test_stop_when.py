"""The rule that ends a search, on virtual time, by the same code as in a live sweep."""

from __future__ import annotations

from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError
from tunelight.searchers import GridSearcher
from tunelight.space import SearchSpace


@pytest.mark.parametrize("scheduler", ["asha", "elastic_asha", "fifo", "hyperband"])
def test_a_search_ends_before_its_last_trial_and_says_so(scheduler: str) -> None:
    found = tl.simulate("digits", scheduler, num_samples=400, stop_when="no_better:0.05", seed=1)
    again = tl.simulate("digits", scheduler, num_samples=400, stop_when="no_better:0.05", seed=1)
    assert 20 <= len(found.trials) < 300
    assert found.notes[-1].startswith(f"stop_when: after {len(found.trials)} trials, the chance that ")
    assert [trial.best for trial in again.trials] == [trial.best for trial in found.trials]
    assert again.notes == found.notes
    whole = tl.simulate("digits", scheduler, num_samples=400, seed=1)
    assert found.worker_seconds < whole.worker_seconds
    assert found.best is not None
    assert whole.best is not None
    assert found.best <= whole.best + 0.05


def test_a_small_margin_lets_it_go_on() -> None:
    found = tl.simulate("digits", "asha", num_samples=60, stop_when="no_better:0", seed=1)
    assert len(found.trials) > 50


def test_repetitions_come_after_it() -> None:
    found = tl.simulate("digits", num_samples=400, stop_when="no_better:0.1", repeats={"top": 2, "repeats": 2}, seed=1)
    again = [trial for trial in found.trials if trial.repeats is not None]
    assert again
    assert all(trial.repeats is None for trial in found.trials[: -len(again)])
    assert len(found.trials) < 300


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stop_when": 0.01}, "stop_when must be 'no_better:0.01'"),
        ({"stop_when": "no_better"}, "stop_when must be 'no_better:0.01'"),
        ({"scheduler": "gang_pbt"}, "stop_when= judges by earlier trials.*under GangPBT"),
        ({"searcher": GridSearcher(SearchSpace({"x": tl.choice([1, 2])}))}, "those of a grid come in order"),
    ],
)
def test_where_it_can_mean_nothing_it_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        tl.simulate("digits", **{"stop_when": "no_better:0.1", **more})
