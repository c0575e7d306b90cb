"""SweepSearch makes repetitions once the search is over; the world checks them in sweeps that are resumed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.searchers import Repetitions, SweepSearch
from tunelight.settings.values import Repeats


class Own(Searcher):
    """Counts, and remembers what it learned."""

    def __init__(self) -> None:
        super().__init__(metric="loss", mode="min")
        self.asked = 0
        self.learned: list[str] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.asked += 1
        return {"x": float(self.asked)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.learned.append(trial_id)


def search(num_samples: int = 3, *, top: int = 2, **more: Any) -> Any:
    made = SweepSearch(Own(), num_samples, repeats=Repetitions(Repeats(2, top=top), "loss", "min"), **more)
    made.add_configurations(SimpleNamespace(spec={"run": "train"}))
    return made


@pytest.fixture(autouse=True)
def _trainable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune asks Ray whether it knows the name of what is trained."""
    monkeypatch.setattr("ray.tune.experiment.trial.validate_trainable", lambda _: None)


def end(made: Any, trial: Trial, loss: float, *, stopped: bool = False, state: str = "") -> None:
    for number in (1, 2, 3):
        result: dict[str, Any] = {"training_iteration": number, "timestamp": number, "loss": loss + 1 - number / 3}
        if number < 3 or not stopped:
            made.on_trial_result(trial.trial_id, result)
    if state:
        result |= {"_tunelight/error/state": state}
    trial.status = Trial.RUNNING
    made.on_trial_complete(trial.trial_id, {**result, "done": True}, error=bool(state))


def test_the_searcher_does_not_learn_of_repetitions_which_come_beyond_num_samples_for_none_that_failed() -> None:
    made = search(4)
    first = [made.next_trial() for _ in range(4)]
    end(made, first[0], 0.05, state="DIVERGED")
    for trial, loss in zip(first[1:], (0.3, 0.1, 0.2), strict=True):
        assert made.next_trial() is None
        end(made, trial, loss)
    first[2].config["x"] = "changed"
    again = [made.next_trial(), made.next_trial()]
    assert made.next_trial() is None
    assert [trial.config for trial in again] == [{"x": 3.0}, {"x": 4.0}]
    assert [made.repetition_of(trial.trial_id) for trial in again] == [("00002", 1), ("00003", 1)]
    assert made.total_samples == 4
    end(made, again[0], 0.2, state="ERROR")  # it is not replaced
    end(made, again[1], 0.2)
    assert made.is_finished()
    assert (made.searcher.asked, made.searcher.learned) == (4, ["00000", "00001", "00002", "00003"])


@pytest.mark.parametrize(("stopped", "ends"), [(True, 3), (False, math.inf)])
def test_repetitions_end_where_the_furthest_trials_did(stopped: bool, ends: float) -> None:
    made = search(1, top=1)
    trial = made.next_trial()
    end(made, trial, 0.1, stopped=stopped)
    again = made.next_trial()
    assert made.ends_at(trial.trial_id) is None
    assert made.ends_at(again.trial_id) == ends


def test_more_trials_are_made_before_more_repetitions_and_none_that_the_scheduler_does_not_admit() -> None:
    open_ = [True]
    made = search(2, admit=lambda: open_[0])
    for trial, loss in [(made.next_trial(), 0.2), (made.next_trial(), 0.3)]:
        end(made, trial, loss)
    again = made.next_trial()
    with pytest.raises(SettingsError, match="2 or more"):
        made.extend(1)
    made.extend(3)
    new = made.next_trial()
    assert made.repetition_of(new.trial_id) is None
    end(made, again, 0.2)
    end(made, new, 0.1)
    open_[0] = False
    assert made.next_trial() is None
    assert made.is_finished()
    open_[0] = True
    assert made.repetition_of(made.next_trial().trial_id) == (new.trial_id, 1)
