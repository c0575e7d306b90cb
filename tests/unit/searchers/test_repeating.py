"""SweepSearch makes repetitions once the search is over, and goes on with them in a resumed sweep."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.messages import repetition_in
from tunelight.record import Training
from tunelight.searchers import Repetitions, ResumeState, SweepSearch
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


def search(num_samples: int = 3, *, start: ResumeState | None = None, top: int = 2, n: int = 2, **more: Any) -> Any:
    start = start or ResumeState()
    repeats = Repetitions(Repeats(n, top=top), "loss", "min", start.past)
    made = SweepSearch(Own(), num_samples, start=start, repeats=repeats, **more)
    made.add_configurations(SimpleNamespace(spec={"run": "train"}))
    return made


@pytest.fixture(autouse=True)
def _trainable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune asks Ray whether it knows the name of what is trained."""
    monkeypatch.setattr("ray.tune.experiment.trial.validate_trainable", lambda _: None)


def end(made: Any, trial: Trial, loss: float, *, reports: int = 3, stopped: bool = False, state: str = "") -> None:
    for number in range(1, reports + 1):
        result: dict[str, Any] = {
            "training_iteration": number,
            "timestamp": number,
            "loss": loss + 1 - number / reports,
        }
        if number < reports or not stopped:
            made.on_trial_result(trial.trial_id, result)
    if state:
        result |= {"_tunelight/error/state": state}
    trial.status = Trial.RUNNING
    made.on_trial_complete(trial.trial_id, {**result, "done": True}, error=bool(state))


def searched(made: Any, *losses: float) -> None:
    trials = [made.next_trial() for _ in losses]
    assert made.next_trial() is None
    for trial, loss in zip(trials, losses, strict=True):
        end(made, trial, loss)


def test_repetitions_come_once_all_trials_have_ended_beyond_their_number() -> None:
    made = search()
    first = [made.next_trial() for _ in range(3)]
    end(made, first[0], 0.3)
    end(made, first[1], 0.1)
    assert made.next_trial() is None
    assert not made.is_finished()
    end(made, first[2], 0.2)
    again = [made.next_trial(), made.next_trial()]
    assert made.next_trial() is None
    assert not made.is_finished()
    assert [trial.config for trial in again] == [{"x": 2.0}, {"x": 3.0}]
    assert [trial.trial_id for trial in again] == ["00003", "00004"]
    assert [made.repetition_of(trial.trial_id) for trial in again] == [("00001", 1), ("00002", 1)]
    assert [repetition_in(str(trial)) for trial in [*first, *again]] == [0, 0, 0, 1, 1]
    assert made.total_samples == 3
    for trial in again:
        end(made, trial, 0.2)
    assert made.is_finished()
    assert made.searcher.asked == 3
    assert made.searcher.learned == ["00000", "00001", "00002"]


def test_a_configuration_is_copied_for_its_repetition() -> None:
    made = search(1, top=1)
    trial = made.next_trial()
    end(made, trial, 0.1)
    trial.config["x"] = "changed"
    assert made.next_trial().config == {"x": 1.0}


@pytest.mark.parametrize(("stopped", "ends"), [(True, 3), (False, math.inf)])
def test_repetitions_end_where_the_furthest_trials_did(stopped: bool, ends: float) -> None:
    made = search(1, top=1)
    trial = made.next_trial()
    end(made, trial, 0.1, stopped=stopped)
    again = made.next_trial()
    assert made.ends_at(trial.trial_id) is None
    assert made.ends_at(again.trial_id) == ends


@pytest.mark.parametrize("state", ["ERROR", "OOM", "DIVERGED"])
def test_a_failed_trial_is_not_repeated_and_a_failed_repetition_not_replaced(state: str) -> None:
    made = search(2)
    trials = [made.next_trial(), made.next_trial()]
    end(made, trials[0], 0.1, state=state)
    end(made, trials[1], 0.2)
    again = made.next_trial()
    assert made.repetition_of(again.trial_id) == ("00001", 1)
    end(made, again, 0.2, state=state)
    assert made.is_finished()


def test_more_trials_are_made_before_more_repetitions() -> None:
    made = search(2)
    searched(made, 0.2, 0.3)
    again = made.next_trial()
    with pytest.raises(SettingsError, match="2 or more"):
        made.extend(1)
    made.extend(3)
    new = made.next_trial()
    assert made.repetition_of(new.trial_id) is None
    end(made, again, 0.2)
    end(made, new, 0.1)
    assert made.repetition_of(made.next_trial().trial_id) == (new.trial_id, 1)


def test_nothing_is_repeated_that_the_scheduler_does_not_admit() -> None:
    open_ = [True]
    made = search(1, admit=lambda: open_[0])
    searched(made, 0.1)
    open_[0] = False
    assert made.next_trial() is None
    assert made.is_finished()


def test_a_resumed_sweep_makes_the_repetitions_that_are_missing() -> None:
    past = [
        (Training("00000", 0, state="FINISHED", reports=3, value=0.1), {"x": 1.0}),
        (Training("00001", 1, state="FINISHED", reports=3, value=0.2), {"x": 2.0}),
        (Training("00002", 2, "00000", 1, "FINISHED", 3, 0.1), {"x": 1.0}),
    ]
    made = search(2, start=ResumeState(created=3, repetitions=1, past=tuple(past)))
    again = made.next_trial()
    assert (again.trial_id, made.repetition_of(again.trial_id)) == ("00003", ("00001", 1))
    end(made, again, 0.2)
    assert made.is_finished()
    assert made.searcher.asked == 0
