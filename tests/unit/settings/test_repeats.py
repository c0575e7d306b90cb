"""The setting repeats: what is taken, what is refused, and how it is kept."""

from __future__ import annotations

from typing import Any

import pytest

import tunelight as tl
from tunelight.errors import SettingsError, TunelightError
from tunelight.settings import Settings
from tunelight.settings.checks import plain_setting
from tunelight.settings.repeats import Repeats


@pytest.mark.parametrize(
    ("given", "taken", "plain"),
    [
        (3, Repeats(3), {"repeats": 3, "top": 5}),
        ({"top": 2, "repeats": 4}, Repeats(4, top=2), {"repeats": 4, "top": 2}),
        (tl.Folds(5), Repeats(5, folds=True), {"folds": 5, "top": 5}),
        ({"folds": 5, "top": 3}, Repeats(5, top=3, folds=True), {"folds": 5, "top": 3}),
    ],
)
def test_each_form_is_taken_and_kept_as_plain_data_that_is_taken_again(given: Any, taken: Repeats, plain: Any) -> None:
    settings = Settings(repeats=given)
    assert settings.repeats == taken
    assert plain_setting(settings.repeats) == plain
    assert Settings(repeats=plain).repeats == taken
    assert settings.folds == (taken.repeats if taken.folds else None)
    assert settings.recorded["repeats"] == plain


def test_by_default_nothing_is_repeated_and_the_record_says_nothing() -> None:
    assert Settings().repeats is None
    assert "repeats" not in Settings(metric="loss").recorded


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1, "repeats must be a whole number of 2 or more, not 1"),
        (0, "of 2 or more, not 0"),
        (True, "of 2 or more, not True"),
        ("3", r"as in 3, \{'top': 5, 'repeats': 3\} or tl.Folds\(5\), not '3'"),
        (2.0, "not 2.0"),
        ({"top": 0, "repeats": 2}, "repeats: top must be a whole number of 1 or more, not 0"),
        ({"top": 5}, "must say either repeats .* or folds"),
        ({"repeats": 2, "folds": 2}, "must say either"),
        ({"tops": 5, "repeats": 2}, "repeats has no 'tops'. Did you mean 'top'"),
        ({"folds": 1}, "repeats: folds must be a whole number of 2 or more, not 1"),
    ],
)
def test_what_is_no_number_of_repeats_is_refused(value: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(repeats=value)


@pytest.mark.parametrize(("arguments", "says"), [((1,), "Folds: folds must be .* 2 or more"), ((5, 0), "Folds: top")])
def test_folds_are_checked_where_they_are_made(arguments: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        tl.Folds(*arguments)


def test_a_yaml_file_takes_them_and_shows_where_they_are_wrong(tmp_path: Any) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("space: {x: {uniform: [0, 1]}}\nrepeats: {folds: 5, top: 3}\n")
    assert tl.SearchSpace.of(file).settings["repeats"] == Repeats(5, top=3, folds=True)
    file.write_text("space: {x: {uniform: [0, 1]}}\nrepeats:\n  top: 3\n  repeat: 2\n")
    with pytest.raises(TunelightError, match=r"space.yaml:4.*repeats has no 'repeat'. Did you mean 'repeats'"):
        tl.SearchSpace.of(file)
