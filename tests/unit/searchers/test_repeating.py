"""SweepSearch makes repetitions once the search is over; the world checks them in sweeps that are resumed."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest import mock

import pytest
from ray.tune.search import Searcher

from tests.kit.recording import Tune, queued
from tunelight.errors import SettingsError
from tunelight.settings.values import Repeats


def search(num_samples: int = 3, *, top: int = 2, **more: Any) -> Any:
    """Return a search whose searcher counts, and what tells it of its trials."""
    searcher = mock.Mock(spec=Searcher, metric="loss", mode="min")
    searcher.suggest.side_effect = ({"x": float(number)} for number in itertools.count(1))
    made = queued(searcher, num_samples, repeats=Repeats(2, top=top), **more)
    return made, Tune(made)


def run(tune: Tune, loss: float, trial: str = "", *, stop: bool = False, error: str = "") -> str:
    """Let a new trial, or one that has begun, report three times and end."""
    trial = trial or tune.begin()
    for number in (1, 2):
        tune.report(trial, number, loss + 1 - number / 3)
    tune.report(trial, 3, loss, stop=stop, error=error)
    tune.end(trial)
    return trial


def repeats(made: Any, trial: str) -> tuple[str | None, int]:
    known = made.book.state.trials[trial]
    return known.repeats, known.repetition


def test_the_searcher_does_not_learn_of_repetitions_which_come_beyond_num_samples_for_none_that_failed() -> None:
    made, tune = search(4)
    first = [tune.begin() for _ in range(4)]
    run(tune, 0.05, first[0], error="DIVERGED")
    for trial, loss in zip(first[1:], (0.3, 0.1, 0.2), strict=True):
        assert made.next_trial() is None
        run(tune, loss, trial)
    tune.trials[first[2]].config["x"] = "changed"
    again = [tune.begin(), tune.begin()]
    assert made.next_trial() is None
    assert [tune.trials[trial].config for trial in again] == [{"x": 3.0}, {"x": 4.0}]
    assert [repeats(made, trial) for trial in again] == [("00002", 1), ("00003", 1)]
    assert made.total_samples == 4
    run(tune, 0.2, again[0], error="ERROR")  # it is not replaced
    run(tune, 0.2, again[1])
    assert made.is_finished()
    assert made.searcher.suggest.call_count == 4
    learned = [call.kwargs["trial_id"] for call in made.searcher.on_trial_complete.call_args_list]
    assert learned == ["00000", "00001", "00002", "00003"]


@pytest.mark.parametrize(("stopped", "ends"), [(True, 3), (False, math.inf)])
def test_repetitions_end_where_the_furthest_trials_did(stopped: bool, ends: float) -> None:
    made, tune = search(1, top=1)
    trial = run(tune, 0.1, stop=stopped)
    again = tune.begin()
    assert made.ends_at(trial) is None
    assert made.ends_at(again) == ends


def test_more_trials_are_made_before_more_repetitions_and_none_that_the_scheduler_does_not_admit() -> None:
    open_ = [True]
    made, tune = search(2, admit=lambda: open_[0])
    for trial, loss in [(tune.begin(), 0.2), (tune.begin(), 0.3)]:
        run(tune, loss, trial)
    again = tune.begin()
    with pytest.raises(SettingsError, match="2 or more"):
        made.extend(1)
    made.extend(3)
    new = tune.begin()
    assert repeats(made, new) == (None, 0)
    run(tune, 0.2, again)
    run(tune, 0.1, new)
    open_[0] = False
    assert made.next_trial() is None
    assert made.is_finished()
    open_[0] = True
    assert repeats(made, tune.begin()) == (new, 1)
