"""What a notebook shows of results."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.unit.results.test_results import ERROR, Writer
from tunelight.errors import MetricError, SettingsError


@pytest.fixture
def written(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def shown(thing: object) -> ET.Element:
    """Return what a notebook would show, which is also well-formed XML."""
    return ET.fromstring(thing._repr_html_())  # type: ignore[attr-defined]


def rows(page: ET.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]


def curve(page: ET.Element) -> str:
    return str(next(page.iter("code")).text)


def test_a_sweep_shows_its_best_trials_and_the_best_value_so_far(written: Writer) -> None:
    written.trial(0.9, 0.5)
    written.trial(0.7, state="STOPPED")
    written.trial(0.2)
    page = shown(written.load())
    assert rows(page) == [
        ["trial", "state", "best loss", "lr"],
        ["2", "FINISHED", "0.2", "0.01"],
        ["0", "FINISHED", "0.5", "1"],
        ["1", "STOPPED", "0.7", "0.1"],
    ]
    assert curve(page) == "██▁"
    text = "".join(page.itertext())
    assert "3 trials (2 finished, 1 stopped)" in text
    assert "best loss so far, by trial: 0.2 (from 0.2 to 0.5)" in text
    assert "results.best_config: {'lr': 0.01}" in text


def test_only_the_best_ten_are_listed(written: Writer) -> None:
    for number in range(13):
        written.trial(number / 13)
    page = shown(written.load())
    assert len(rows(page)) == 11
    assert "and 3 more" in "".join(page.itertext())


def test_a_sweep_without_a_result_shows_its_states(written: Writer) -> None:
    written.trial(state="ERROR", error=ERROR)
    page = shown(written.load())
    assert "1 trial (1 error)" in "".join(page.itertext())
    assert rows(page) == []


def test_a_trial_shows_its_curve_and_configuration(written: Writer) -> None:
    written.trial(0.9, float("nan"), 0.3, config={"model": {"lr": 0.1}, "data": "a"})
    page = shown(written.load().best)
    assert rows(page) == [["key", "value"], ["model.lr", "0.1"], ["data", "a"]]
    assert curve(page) == "█▁"
    assert "Trial 00000 finished, best loss 0.3" in "".join(page.itertext())


def test_a_stopped_trial_shows_why(written: Writer) -> None:
    written.trial(0.9, state="STOPPED", why="place 2 of <2>")
    page = shown(written.load().trials[0])
    assert "Trial 00000 stopped (place 2 of <2>), best loss 0.9" in "".join(page.itertext())


def test_a_failed_trial_shows_its_error(written: Writer) -> None:
    written.trial(0.8, state="ERROR", error=ERROR)
    (trial,) = written.load().errors
    page = shown(trial)
    assert "no such lr" in "".join(page.find(".//pre").itertext())  # type: ignore[union-attr]
    assert not list(page.iter("code")), "one point is no curve"


def test_what_users_write_is_text(written: Writer) -> None:
    written.trial(0.9, 0.3, config={"<b>": "<script>alert(1)</script>", "quote": '"&'})
    results = written.load()
    for thing in (results, results.best):
        html = thing._repr_html_()
        assert "<script" not in html
        assert "<b>&lt;" not in html.replace("<td", "")
        assert ["<script>alert(1)</script>" in "".join(row) for row in rows(shown(thing))].count(True) == 1


def test_a_figure_is_drawn_by_its_name(written: Writer) -> None:
    written.trial(0.9, 0.5)
    written.trial(0.2)
    results = written.load()
    drawn = results.plot()
    assert min(drawn.data[-1].y) == 0.2
    assert results.plot("learning_curves", metric="loss").data
    with pytest.raises(SettingsError, match="There is no figure 'historry'"):
        results.plot("historry")
    with pytest.raises(MetricError):
        results.plot("history", metric="los")
