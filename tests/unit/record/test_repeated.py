"""Which configurations are trained again, and what their trainings say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tunelight.record import Training, plan, standings
from tunelight.record.repeated import chosen
from tunelight.settings.repeats import Repeats

THREE = Repeats(3, top=3)


def trial(number: int, value: float | None, state: str = "FINISHED", reports: int = 9) -> Training:
    return Training(f"{number:05d}", number, None, 0, state, reports, value)


class Made:
    """Trainings of a sweep, to which repetitions are added."""

    def __init__(self, *first: Training) -> None:
        self.all = list(first)

    def again(self, first: int, value: float | None, state: str = "FINISHED", reports: int = 9) -> Training:
        repetition = 1 + sum(one.repeats == f"{first:05d}" for one in self.all)
        one = Training(f"{len(self.all):05d}", len(self.all), f"{first:05d}", repetition, state, reports, value)
        self.all.append(one)
        return one

    def next(self, repeats: Repeats = THREE, mode: str = "min") -> list[tuple[int, int]]:
        return [(int(first), number) for first, number in plan(self.all, repeats, mode)]


@pytest.mark.parametrize(
    ("found", "ids"),
    [
        ([trial(0, 0.3), trial(1, 0.1), trial(2, 0.2), trial(3, 0.4)], [1, 2, 0]),
        ([trial(0, 0.3, reports=2), trial(1, 0.1, "STOPPED", 3), trial(2, 0.2, "STOPPED", 5)], [0, 2, 1]),
        ([trial(0, 0.1, "ERROR"), trial(1, None), trial(2, 0.1, "DIVERGED"), trial(3, 0.1, "INTERRUPTED")], []),
        ([trial(0, 0.1), trial(1, 0.1)], [0, 1]),
    ],
    ids=["by value", "ended by themselves, then most reports", "no others", "equals in order"],
)
def test_those_that_came_furthest_are_chosen_by_their_value(found: list[Training], ids: list[int]) -> None:
    assert [one.index for one in chosen(found, 3, "min")] == ids


def test_each_configuration_is_trained_a_second_time_before_any_is_a_third_time() -> None:
    made = Made(trial(0, 0.30), trial(1, 0.31), trial(2, 0.29))
    assert made.next() == [(2, 1), (0, 1), (1, 1), (2, 2), (0, 2), (1, 2)]
    for number in (2, 0, 1):
        made.again(number, 0.3 + number / 1000, "RUNNING")
    assert made.next() == [(2, 2), (0, 2), (1, 2)]
    for number in (0, 1, 2):
        made.again(number, 0.3)
    assert made.next() == []


def test_a_trial_that_was_stopped_early_does_not_count_and_is_made_up_for_in_a_last_round() -> None:
    made = Made(trial(0, 0.30), trial(1, 0.20, "STOPPED", 3))
    for _ in range(2):
        made.again(0, 0.30)
        made.again(1, 0.31)
    assert made.next() == [(1, 3)]
    made.again(1, 0.33)
    assert made.next() == []
    first, second = standings(made.all, THREE, "min")
    assert (first.trial, first.n) == ("00000", 3)
    assert second.trials == ("00003", "00005", "00006")
    assert (first.mean, second.mean) == pytest.approx((0.30, 0.95 / 3))


def test_a_short_trial_does_not_count_either_while_longer_ones_are_still_trained_again() -> None:
    made = Made(trial(0, 0.30), trial(1, 0.90, "STOPPED", 3))
    made.again(0, 0.4, "INTERRUPTED", 5)
    made.again(1, 0.31)
    (only,) = standings(made.all, THREE, "min")
    assert (only.trial, only.trials, only.mean) == ("00001", ("00003",), 0.31)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_mean_comes_first_with_its_spread(mode: Any) -> None:
    made = Made(trial(0, 0.1), trial(1, 0.2))
    for first, value in ((0, 0.5), (1, 0.22)):
        made.again(first, value)
    ranked = standings(made.all, THREE, mode)
    best = ranked[0]
    assert best.trial == ("00001" if mode == "min" else "00000")
    assert best.mean == pytest.approx(0.21 if mode == "min" else 0.3)
    assert best.spread == pytest.approx(abs(best.values[0] - best.values[1]) / math.sqrt(2))


def test_a_repetition_that_failed_is_one_training_less_and_one_that_diverged_is_infinitely_bad() -> None:
    made = Made(trial(0, 0.10), trial(1, 0.20), trial(2, 0.05))
    made.again(0, 0.5, "ERROR")
    made.again(0, 0.12)
    made.again(1, 0.21)
    made.again(2, 0.06, "DIVERGED")
    best, second, third = standings(made.all, THREE, "min")
    assert (best.trial, best.values, best.failed) == ("00000", (0.10, 0.12), ("00003",))
    assert second.trial == "00001"
    assert (third.trial, third.mean, third.spread) == ("00002", math.inf, None)


def test_where_all_repetitions_failed_the_single_result_comes_last() -> None:
    made = Made(trial(0, 0.10), trial(1, 0.20))
    made.again(0, None, "ERROR")
    made.again(1, 0.30)
    best, last = standings(made.all, Repeats(2), "min")
    assert best.trial == "00001"
    assert (last.trial, last.again, last.values) == ("00000", False, (0.10,))


def test_folds_are_compared_as_if_none_were_missing() -> None:
    hard = [0.0, 0.3, 0.0]
    made = Made(trial(0, 0.10), trial(1, 0.12))
    for number, fold in itertools.product((0, 1), (1, 2)):
        failed = number == 1 and fold == 1
        made.again(number, 0.10 + 0.02 * number + hard[fold], "ERROR" if failed else "FINISHED")
    plain = standings(made.all, Repeats(3), "min")
    folded = standings(made.all, Repeats(3, folds=True), "min")
    assert plain[0].trial == "00001"  # it missed the hard fold
    assert folded[0].trial == "00000"
    assert folded[1].mean - folded[0].mean == pytest.approx(0.02)


def test_nothing_is_to_be_repeated_where_no_trial_reported() -> None:
    assert Made(trial(0, None), trial(1, 0.1, "ERROR")).next() == []
    assert standings([trial(0, 0.1)], THREE, "min") == []
