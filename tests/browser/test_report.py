"""The report in headless Chromium: nothing in the console, every figure drawn, the table sorts and searches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.reporting.test_report import EVIL, evil
from tests.unit.sweeps import record
from tunelight.reporting import report
from tunelight.results import SweepResults
from tunelight.results.figures import FIGURES


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
        if not self.page.locator(f".plot[data-figure={name}]").count():  # what has no data is a sentence
            assert len(self.page.locator(f"section#{name} p").text_content()) > 10, name
            return
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
        title = opened.page.locator(f"section#{name} h2").text_content()
        assert len(title) > 10, name
    marks = {
        "history": ".scatterlayer .point",
        "importances": ".barlayer .point",
        "parallel": ".scatterlayer .js-line",
        "slices": ".scatterlayer .point",
        "contour": ".scatterlayer .point",
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


def test_the_columns_that_are_not_ticked_are_hidden(opened: Opened) -> None:
    cell = opened.page.locator("#table tbody tr:first-child td").nth(7)
    assert cell.is_visible()
    opened.page.locator("#columns summary").click()
    opened.page.get_by_label("model.lr").uncheck()
    assert opened.page.locator("#table th", has_text="model.lr").is_hidden()
    assert cell.is_hidden()
    opened.page.get_by_label("model.lr").check()
    assert cell.is_visible()


def test_a_click_on_a_row_opens_its_trial(opened: Opened) -> None:
    section = opened.page.locator(".trial", has=opened.page.locator("#trial-3"))
    assert section.is_hidden()
    opened.page.locator("#table tbody tr").nth(3).locator("td").nth(1).click()
    assert opened.page.locator("#trial-3 .pairs").first.is_visible()
    section.locator("summary").first.click()
    assert section.is_hidden()
    opened.page.locator("#table a[href='#trial-3']").click()
    assert opened.page.locator("#trial-3").is_visible()
    assert opened.said == []


def test_without_its_script_a_link_opens_a_trial(chromium: Any, results: SweepResults, tmp_path: Path) -> None:
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto(f"file://{report(results, tmp_path / 'report.html')}")
    assert page.locator("#trial-3").is_hidden()
    page.locator("#table a[href='#trial-3']").click()
    page.locator("#trial-3").wait_for(state="visible")
    page.context.close()


@pytest.mark.parametrize("several", [False, True])
def test_a_phone_scrolls_no_page_sideways(chromium: Any, results: SweepResults, tmp_path: Path, several: bool) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    other = record(tmp_path / ("long-name-" * 8), trials=6)
    found = Opened(page, report([results, other] if several else results, tmp_path / "report.html"))
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("[...document.querySelectorAll('.plot')].every((place) => place.dataset.drawn)")
    if not several:
        page.locator("#table a").first.click()
    outside = """() => [...document.querySelectorAll("body *")].filter((one) => !one.closest(".wide, .scroll, pre, svg")
        && one.getBoundingClientRect().right > 391).map((one) => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(outside) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert found.said == []
    page.close()


def test_light_and_dark_change_paper_and_figures(opened: Opened) -> None:
    opened.draw("history")
    look = "getComputedStyle({}).{}"
    body = look.format("document.body", "backgroundColor")
    ink = look.format("document.querySelector('.plot[data-figure=history] .xtitle')", "fill")
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
        if not page.locator(f".plot[data-figure={name}]").count():
            continue
        shown = page.locator(f".plot[data-figure={name}]").text_content()
        assert start in shown, name
        assert "&lt;" not in shown, name
    page.close()
