"""When a search ends before its number of trials: the estimate, the rule, and what SweepSearch makes of it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.record import Training
from tunelight.searchers import Repetitions, ResumeState, SweepSearch
from tunelight.searchers.stopping import Stopping, chance
from tunelight.settings import Settings
from tunelight.settings.repeats import Repeats


class Own(Searcher):
    """Counts."""

    def __init__(self) -> None:
        super().__init__(metric="loss", mode="min")
        self.asked = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.asked += 1
        return {"x": float(self.asked)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Learn nothing."""


def draws(count: int, seed: int = 0) -> np.ndarray:
    """Losses with a bound: the best are close together."""
    return np.random.RandomState(seed).uniform(size=count) ** 2.0


# --- the estimate


@pytest.mark.parametrize("draw", ["uniform", "exponential", "lognormal", "normal"])
@pytest.mark.parametrize(("count", "further"), [(40, 40), (200, 200), (100, 20)])
def test_of_independent_draws_it_is_right_or_too_high_where_values_end_abruptly(
    draw: str, count: int, further: int
) -> None:
    rng = np.random.RandomState(7)
    estimates, came = [], []
    for number in range(120):
        losses = getattr(rng, draw)(size=count + further)
        margin = (0.0, 0.02, 0.1)[number % 3] * float(np.median(losses[:count]) - losses[:count].min())
        estimates.append(chance(losses[:count], margin, further))
        came.append(losses[count:].min() < losses[:count].min() - margin)
    too_high = np.mean(estimates) - np.mean(came)
    assert -0.1 < too_high < (0.2 if draw in ("uniform", "exponential") else 0.12)


def test_a_larger_margin_is_less_probable_and_more_trials_more() -> None:
    losses = draws(60)
    by_margin = [chance(losses, margin, 60) for margin in (0.0, 0.01, 0.05, 0.2)]
    assert by_margin == sorted(by_margin, reverse=True)
    by_number = [chance(losses, 0.02, further) for further in (1, 10, 100)]
    assert by_number == sorted(by_number)
    assert all(0 <= found <= 1 for found in (*by_margin, *by_number))


def test_that_anything_is_better_at_all_follows_from_the_numbers_of_trials() -> None:
    assert chance(draws(60), 0.0, 60) == pytest.approx(0.5)
    assert chance(draws(60), 0.0, 20) == pytest.approx(0.25)


def test_where_a_single_trial_stands_out_another_one_may() -> None:
    plateau = list(1 - 0.05 * draws(50))
    assert chance(plateau, 0.1, 51) < 0.1
    assert chance([*plateau, 0.3], 0.1, 51) > 0.2


def test_diverged_trials_and_huge_losses_change_little_for_the_others() -> None:
    losses = draws(60)
    worst = np.sort(losses)[-15:]
    for outlier in (1e9, math.inf):
        spoilt = np.where(np.isin(losses, worst), outlier, losses)
        assert chance(spoilt, 0.01, 60) == pytest.approx(chance(losses, 0.01, 60), abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "margin", "expected"),
    [
        ([0.5] * 30, 0.0, 0.0),  # a space of one point, or an accuracy that all reach
        ([0.5] * 30, 0.1, 0.0),
        ([math.inf] * 30, 0.1, 0.5),  # nothing is known of values yet
        ([0.5] + [math.inf] * 29, 0.1, 0.5),
        ([1.0] * 8 + [0.9] * 22, 0.05, 0.0),
    ],
)
def test_values_without_differences(losses: list[float], margin: float, expected: float) -> None:
    assert chance(losses, margin, 30) == expected


# --- the rule


def fed(losses: Any, margin: float = 0.05, left: int = 1000, **more: Any) -> Stopping:
    """Return a rule that has seen trials end one by one."""
    found = Stopping(margin, "loss", more.pop("mode", "min"), **more)
    for number, loss in enumerate(losses):
        trial = f"{number:05d}"
        found.begin(trial)
        found.report(trial, {"loss": loss})
        found.end(trial, "FINISHED")
        found.consider(set, left - number)
        if found.reason is not None:
            break
    return found


def test_it_ends_a_search_whose_values_have_saturated() -> None:
    said: list[str] = []
    found = Stopping(0.05, "loss", "min")
    found.say = said.append
    for number, loss in enumerate(draws(400) ** 4):
        trial = f"{number:05d}"
        found.begin(trial)
        found.report(trial, {"loss": float(loss) + 1.0})
        found.end(trial, "FINISHED")
        found.consider(set, 1000)
    assert found.reason is not None
    assert said == [found.reason]
    assert found.reason == (
        "stop_when: after 20 trials, the chance that 20 more find a value of loss better than 1 by 0.05 is less than "
        "1 %; no further trials are begun"
    )


def test_it_lets_a_search_go_on_whose_values_still_fall() -> None:
    noise = np.random.RandomState(0).normal(size=150)
    falling = 1 - 0.005 * np.arange(150)
    assert fed(falling + 0.1 * noise).reason is None
    assert fed(0.1 * noise, margin=0.15).reason is not None


def test_it_says_the_same_of_an_accuracy_as_of_the_loss() -> None:
    low, high = fed(draws(300)), fed(-draws(300), mode="max")
    assert low.reason is not None
    assert high.reason is not None
    assert low.reason.split(" better than ")[0] == high.reason.split(" better than ")[0]


def test_it_says_nothing_before_twenty_trials_and_then_only_with_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(losses: list[float], margin: float, further: int) -> float:
        asked.append(len(losses))
        return 1.0

    monkeypatch.setattr("tunelight.searchers.stopping.chance", counted)
    fed(draws(1000))
    assert asked[:5] == [20, 21, 23, 25, 27]
    assert len(asked) < 100
    assert asked[-1] > 950


def test_running_trials_count_with_what_they_have_reported_but_do_not_make_it_ask() -> None:
    found = Stopping(0.05, "loss", "min")
    for number in range(60):
        found.begin(f"{number:05d}")
        found.report(f"{number:05d}", {"loss": 1.0})
        found.consider(set, 1000)
    assert found.reason is None
    found.consider(lambda: [f"{number:05d}" for number in range(30)], 1000)  # a scheduler has paused so many
    assert found.reason is not None


def test_trials_that_failed_say_nothing_and_those_that_diverged_are_bad() -> None:
    for state, expected in (("ERROR", 0), ("DIVERGED", 1)):
        found = Stopping(0.05, "loss", "min")
        for number in range(30):
            found.begin(f"{number:05d}")
            found.report(f"{number:05d}", {"loss": math.nan if number % 2 else 0.5})
            found.end(f"{number:05d}", state if number % 2 else "FINISHED")
        losses = [found._loss(one) for one in found._trainings.values()]
        assert losses.count(None) == 15 * (1 - expected)
        assert losses.count(math.inf) == 15 * expected


def test_as_many_further_trials_count_as_may_still_be_made() -> None:
    assert "that 1 more finds" in str(fed(draws(20), 0.0, left=20).reason)
    assert fed(draws(20), 0.0, left=1000).reason is None


def test_of_several_metrics_the_first_counts() -> None:
    settings = Settings(metric=["accuracy", "seconds"], mode=["max", "min"], stop_when="no_better:0.05")
    found = Stopping.of(settings)
    assert found is not None
    for number in range(20):
        found.begin(f"{number:05d}")
        found.report(f"{number:05d}", {"accuracy": 0.9, "seconds": -float(number)})
        found.end(f"{number:05d}", "FINISHED")
    found.consider(set, 100)
    assert "find a value of accuracy better than 0.9 by 0.05" in str(found.reason)
    assert Stopping.of(Settings(metric="loss")) is None


def test_a_rule_that_goes_on_is_as_one_that_was_not_interrupted() -> None:
    losses = [float(loss) for loss in draws(300)]
    whole = fed(losses)
    assert whole.reason is not None
    past = [Training(f"{n:05d}", n, state="FINISHED", reports=3, value=loss) for n, loss in enumerate(losses[:25])]
    again = Stopping(0.05, "loss", "min", [*past, Training("r", 99, repeats="00001", reports=3, value=-9.0)])
    for number, loss in enumerate(losses[25:], 25):
        again.begin(f"{number:05d}")
        again.report(f"{number:05d}", {"loss": loss})
        again.end(f"{number:05d}", "FINISHED")
        again.consider(set, 1000 - number)
        if again.reason is not None:
            break
    assert again.reason == whole.reason


def test_paused_trials_count_for_a_rule_that_goes_on_as_they_did_before() -> None:
    def past(state: str) -> list[Training]:
        return [
            Training(f"{n:05d}", n, state=state if n < 10 else "FINISHED", reports=3, value=0.5 + n / 100)
            for n in range(30)
        ]

    paused = {f"{n:05d}" for n in range(10)}
    for state in ("FINISHED", "PAUSED"):
        again = Stopping(0.05, "loss", "min", past(state))
        again.begin("00030")
        again.report("00030", {"loss": 0.5})
        again.consider(lambda: paused, 100)
        assert again.reason is None  # too early: it was asked at thirty, and will be at 32


# --- the search


@pytest.fixture(autouse=True)
def _trainable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune asks Ray whether it knows the name of what is trained."""
    monkeypatch.setattr("ray.tune.experiment.trial.validate_trainable", lambda _: None)


def search(num_samples: int = 100, start: ResumeState | None = None, **more: Any) -> SweepSearch:
    start = start or ResumeState()
    stopping = Stopping(0.05, "loss", "min", start.trainings, start.over)
    made = SweepSearch(Own(), num_samples, start=start, stopping=stopping, **more)
    made.add_configurations(SimpleNamespace(spec={"run": "train"}))
    return made


def end(made: SweepSearch, trial: Trial, loss: float) -> None:
    result = {"training_iteration": 1, "timestamp": 1, "loss": loss, "done": True}
    trial.status = Trial.RUNNING
    made.on_trial_complete(trial.trial_id, result)


def saturated(made: SweepSearch, most: int = 100) -> list[Trial]:
    """Run trials, two at a time, that all find the same; return them."""
    trials: list[Trial] = []
    while len(trials) < most and (trial := made.next_trial()) is not None:
        trials.append(trial)
        if len(trials) > 1:
            end(made, trials[-2], 0.5)
    return trials


def test_the_search_ends_and_trials_that_run_go_on() -> None:
    made = search()
    trials = saturated(made)
    assert len(trials) == 21  # twenty have ended
    assert made.over is not None
    assert made.all_made
    assert not made.is_finished()
    assert made.total_samples == 100
    end(made, trials[-1], 0.1)
    assert made.is_finished()
    assert made.next_trial() is None


def test_repetitions_come_after_it() -> None:
    made = search(repeats=Repetitions(Repeats(2, top=1), "loss", "min"))
    trials = saturated(made)
    end(made, trials[-1], 0.1)
    assert not made.is_finished()
    again = made.next_trial()
    assert again is not None
    assert made.repetition_of(again.trial_id) == (trials[-1].trial_id, 1)
    end(made, again, 0.1)
    assert made.is_finished()


def test_a_configuration_that_somebody_enqueues_is_tried_and_no_other() -> None:
    made = search()
    saturated(made)
    made.enqueue({"x": -1.0})
    trial = made.next_trial()
    assert trial is not None
    assert trial.config == {"x": -1.0}
    assert made.next_trial() is None


def test_whoever_asks_for_more_trials_gets_them() -> None:
    made = search()
    first = len(saturated(made))
    with pytest.raises(SettingsError, match="21 or more"):
        made.extend(3)
    assert made.over is not None
    made.extend(40)
    assert first + len(saturated(made)) == 40
    assert made.over is None


def test_a_search_that_had_ended_makes_no_further_trial_but_new_baselines() -> None:
    start = ResumeState(created=25, over="stop_when: enough")
    assert search(start=start).next_trial() is None
    made = search(start=start, baselines=[{"x": 9.0}])
    trial = made.next_trial()
    assert trial is not None
    assert trial.config == {"x": 9.0}
    assert made.next_trial() is None
    assert made.over == "stop_when: enough"
