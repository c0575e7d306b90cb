"""The report in headless Chromium: nothing in the console, every figure drawn, the table sorts and searches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.reporting.test_report import EVIL, evil
from tests.unit.sweeps import record
from tunelight.reporting import FIGURES, report
from tunelight.results import SweepResults


class Opened:
    """A report in a page of its own, with all that the browser had to say."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.said = page, list[str]()
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(f"file://{path}")

    def draw(self, name: str) -> None:
        self.page.evaluate(f"document.getElementById('{name}').scrollIntoView()")
        self.page.wait_for_selector(f".plot[data-figure={name}][data-drawn]", timeout=30_000)

    def draw_all(self) -> None:
        for name in FIGURES:
            self.draw(name)

    def column(self, number: int) -> list[str]:
        cells = "[...document.querySelectorAll('#table tbody tr:not([hidden])')]"
        found: list[str] = self.page.evaluate(f"{cells}.map(row => row.cells[{number}].textContent)")
        return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits", trials=30)


@pytest.fixture
def opened(chromium: Any, results: SweepResults, tmp_path: Path) -> Iterator[Opened]:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    yield Opened(page, report(results, tmp_path / "report.html"))
    page.close()


def test_every_figure_is_drawn_and_the_console_stays_empty(opened: Opened) -> None:
    opened.draw_all()
    for name in FIGURES:
        place = f".plot[data-figure={name}]"
        assert opened.page.locator(f"{place} .main-svg").count() > 0, name
        title = opened.page.locator(f"{place} .gtitle").first.text_content()
        assert len(title) > 10, name
    marks = {
        "history": ".scatterlayer .point",
        "importances": ".barlayer .point",
        "parallel": ".parcoords .y-axis",
        "slices": ".scatterlayer .point",
        "timeline": ".scatterlayer path.js-line",
        "pareto": ".scatterlayer .point",
    }
    for name, mark in marks.items():
        assert opened.page.locator(f".plot[data-figure={name}] {mark}").count() > 0, name
    assert opened.said == []


def test_nothing_but_the_file_is_asked_for(opened: Opened) -> None:
    opened.draw_all()
    assert [url for url in opened.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_figure_is_drawn_only_when_it_comes_near(opened: Opened) -> None:
    opened.draw("history")
    assert opened.page.locator(".plot[data-figure=pareto][data-drawn]").count() == 0


def test_the_table_sorts_by_a_click_and_back(opened: Opened, results: SweepResults) -> None:
    button = opened.page.get_by_role("button", name="best loss")
    button.click()
    values = [trial.value for trial in results.trials if trial.value is not None]
    shown = opened.column(2)
    assert shown == [f"{value:.4g}" for value in sorted(values)]
    assert opened.page.locator("th[aria-sort=ascending]").text_content() == "best loss"
    button.click()
    assert opened.column(2) == [f"{value:.4g}" for value in sorted(values, reverse=True)]
    opened.page.get_by_role("button", name="trial", exact=True).click()
    assert opened.column(0) == [str(trial.index) for trial in results.trials]


def test_the_table_shows_what_is_searched_for(opened: Opened, results: SweepResults) -> None:
    opened.page.get_by_label("Search").fill("finished SGD")
    wanted = [one.index for one in results.trials if one.state == "FINISHED" and one.config["opt"] == "sgd"]
    assert opened.column(0) == [str(index) for index in wanted]
    assert opened.page.locator("#count").text_content() == f"{len(wanted)} of 30 trials"
    opened.page.get_by_label("Search").fill("")
    assert len(opened.column(0)) == 30


def test_light_and_dark_change_paper_and_figures(opened: Opened) -> None:
    opened.draw("history")
    look = "getComputedStyle({}).{}"
    body = look.format("document.body", "backgroundColor")
    ink = look.format("document.querySelector('.plot[data-figure=history] .gtitle')", "fill")
    light = opened.page.evaluate(body), opened.page.evaluate(ink)
    opened.page.locator("#theme").click()
    opened.page.wait_for_function(f"{ink} !== '{light[1]}'")
    assert opened.page.evaluate(body) != light[0]
    assert opened.said == []


def test_what_is_printed_has_every_figure_on_white(opened: Opened) -> None:
    opened.page.locator("#theme").click()
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.page.wait_for_function(f"document.querySelectorAll('.plot[data-drawn]').length === {len(FIGURES)}")
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.page.locator("nav").is_hidden()
    assert len(opened.page.pdf()) > 50_000
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.said == []


@pytest.mark.parametrize("trials", [0, 1])
def test_a_sweep_with_next_to_nothing_opens(chromium: Any, tmp_path: Path, trials: int) -> None:
    page = chromium.new_page()
    found = Opened(page, report(record(tmp_path / "few", trials=trials), tmp_path / "report.html"))
    found.draw_all()
    assert found.said == []
    page.close()


def test_what_others_wrote_is_shown_and_never_run(chromium: Any, tmp_path: Path) -> None:
    page = chromium.new_page()
    found = Opened(page, report(evil(tmp_path / "evil"), tmp_path / "report.html"))
    found.draw_all()
    assert page.evaluate("window.evil") is None
    assert found.said == []
    assert EVIL in page.locator("#table thead").text_content()
    start = EVIL[:20]
    for name in ("history", "slices", "parallel", "importances", "timeline"):
        shown = page.locator(f".plot[data-figure={name}]").text_content()
        assert start in shown, name
        assert "&lt;" not in shown, name
    page.close()
