"""The report in headless Chromium: what a saved page has beyond a live one. See test_pages.py for what both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_web import SIZES, Window
from tests.kit.sweeps import record
from tests.unit.reporting.test_report import EVIL, evil
from tunelight.reporting import report
from tunelight.results import SweepResults


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits", trials=30)


def opened(chromium: Any, path: Path, size: str = "wide") -> Window:
    return Window(chromium.new_context(viewport=SIZES[size]), f"file://{path}")


def draw_all(window: Window) -> None:
    for plot in window.page.query_selector_all(".plot"):
        plot.evaluate("(plot) => plot.scrollIntoView()")
        window.page.wait_for_function(
            "(plot) => plot.dataset.drawn || plot.closest('[hidden]')", arg=plot, timeout=60_000
        )


def test_an_address_that_names_a_trial_opens_it(chromium: Any, results: SweepResults, tmp_path: Path) -> None:
    window = Window(chromium.new_context(), f"file://{report(results, tmp_path)}#trial-3")
    assert "Trial 3 failed" in window.text("#trial")
    window.page.click("text=Back to all trials")
    window.page.wait_for_selector("#list tbody tr")
    window.page.click("#failures summary a >> nth=1")
    window.until(lambda: "Trial 4 diverged" in window.text("#trial"), "the next one that failed")
    window.page.click("nav a[href='#events']")
    window.until(lambda: window.page.evaluate("window.scrollY") > 500, "the events")
    assert window.said == []
    window.page.context.close()


def test_what_is_printed_has_every_figure_on_white(chromium: Any, results: SweepResults, tmp_path: Path) -> None:
    window = opened(chromium, report(results, tmp_path))
    window.page.click("#theme")
    window.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    everything = "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn)"
    window.page.wait_for_function(everything, timeout=60_000)
    window.page.emulate_media(media="print")
    assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.page.locator("nav").is_hidden()
    assert len(window.page.pdf()) > 50_000
    window.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert window.said == []
    window.page.context.close()


def test_what_others_wrote_is_shown_and_never_run(chromium: Any, tmp_path: Path) -> None:
    window = opened(chromium, report(evil(tmp_path / "evil"), tmp_path))
    draw_all(window)
    assert window.page.evaluate("window.evil") is None
    assert window.said == []
    assert EVIL in str(window.page.locator("#list thead").text_content())
    for name in ("history", "slices", "parallel"):
        if plot := window.page.query_selector(f"#{name} .plot"):
            shown = str(plot.text_content())
            assert EVIL[:20] in shown, name
            assert "&lt;" not in shown, name
    window.page.evaluate("window.location.hash = 'trial-5'")
    window.until(lambda: EVIL in str(window.page.locator("#trial").text_content()), "the trial")
    assert window.page.evaluate("window.evil") is None
    window.page.context.close()
