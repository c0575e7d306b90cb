"""A person before the live page, in headless Chromium: watches a real sweep, steers it, sees it die and go on."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from tests.kit.programs import held
from tests.kit.sweeps import record
from tests.kit.waiting import until
from tunelight.record import read_record
from tunelight.results import SweepResults

SIZES = {"wide": {"width": 1400, "height": 900}, "phone": {"width": 390, "height": 844}}
SCREENS = pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("wide", "light"),
        ("phone", "dark"),
        pytest.param("wide", "dark", marks=pytest.mark.slow),
        pytest.param("phone", "light", marks=pytest.mark.slow),
    ],
)
EPOCHS = 5  # the column, of the table of a sweep with one hyperparameter
POINTS = "(document.getElementById('canvas').data || []).flatMap((trace) => trace.x).length"


class Window:
    """A page that is open, with all that the browser said of it."""

    def __init__(self, context: Any, address: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.page.goto(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        """Close it; the browser may have said nothing."""
        assert kind is not None or self.said == []
        self.page.context.close()

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def cells(self, row: str) -> list[str]:
        return [str(text) for text in self.page.locator(f"#list tr[data-key='{row}'] td").all_inner_texts()]

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(IndexError):
                if found := condition():
                    return found
            assert time.monotonic() < end, f"waited {seconds} s for {what}; {self.said}"
            self.page.wait_for_timeout(100)

    def fits(self) -> None:
        wide, room = self.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= room


@contextlib.contextmanager
def driver(storage: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the sweep in a process of its own; give that and the address that it prints."""
    log = storage.parent / f"driver{len(more)}.log"
    words = ("-m", "tests.browser.live_sweep", str(storage), "--web", *more)
    with held(sys.executable, *words, log=log, env={"PYTHONUNBUFFERED": "1"}) as process:
        until(lambda: "Live page: " in log.read_text() or process.poll() is not None, 60)
        found = re.search(r"Live page: (http://\S+)", log.read_text())
        assert found is not None, log.read_text()
        yield process, found[1]
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)


@pytest.mark.timeout(300)
def test_a_person_watches_steers_and_resumes_a_sweep(chromium: Any, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    record(storage / "earlier", trials=12)
    context = chromium.new_context(viewport=SIZES["wide"], color_scheme="light")
    with driver(storage) as (process, address):
        assert urlsplit(address).path == "/sweep/live"
        window = Window(context, address)
        assert "token" not in window.page.url
        see_trials_arrive(window)
        stop_a_trial_on_its_page(window)
        assert read_record(storage / "live").trials["00000"].state == "STOPPED"
        steer(window)
        process.kill()
        process.wait()
        window.until(lambda: "cut off" in window.text("#cards"), "the death to be seen")
        assert "tunelight resume live" in window.text("#standing")
        assert not window.page.is_visible("#wheel")
    with driver(storage, "--resume") as (_, again):
        assert again == address  # and the page that is open goes on with it
        window.until(lambda: "running" in window.text("#cards"), "the sweep to go on")
        before = int(window.cells("1")[EPOCHS])
        window.until(lambda: int(window.cells("1")[EPOCHS]) > before, "more reports")
        assert window.cells("0")[1] == "STOPPED"
        window.page.click("[data-do=stop]")
        window.until(lambda: "running" not in window.text("#cards"), "the sweep to end")
        window.page.click("nav a")
        window.until(lambda: window.page.locator("#list tbody tr").count() == 2, "both sweeps")
    assert window.said == []
    assert all(url.startswith((address.split("/sweep")[0], "data:")) for url in window.asked)
    results = SweepResults.load(storage / "live")
    assert any("stopped by command" in text for _, text in results.record.notes)
    assert results.trials[3].config["lr"] == 0.0123
    context.close()


def see_trials_arrive(window: Window) -> None:
    """See two trials run, and their curves grow."""
    window.until(lambda: window.cells("0")[1] == "RUNNING" and window.cells("1")[1] == "RUNNING", "two trials")
    epochs = window.until(lambda: int(window.cells("0")[EPOCHS] or 0), "a report")
    points = window.until(lambda: window.page.evaluate(POINTS), "the curves")
    window.until(lambda: int(window.cells("0")[EPOCHS]) >= epochs + 3, "three more reports")
    window.until(lambda: window.page.evaluate(POINTS) > points, "the curves to grow")
    window.fits()


def stop_a_trial_on_its_page(window: Window) -> None:
    """Open a trial, read its log as it is written, and stop it."""
    window.page.click("#list tr[data-key='0'] a")
    window.page.wait_for_url("**/sweep/live/trial/0")
    log = window.until(lambda: "step 1 of lr" in window.text("#log pre") and window.text("#log pre"), "its log")
    window.until(lambda: len(window.text("#log pre")) > len(log), "more of its log")
    window.until(lambda: "loss; best" in window.text("#trial"), "its curves")
    assert "accuracy; best" in window.text("#trial")
    assert "tunelight reproduce" in window.text("#trial")
    window.fits()
    window.page.fill("[data-form=branch] [name=config]", "lr=0.0321")
    window.page.click("[data-form=branch] button")
    window.until(lambda: "begins with the state of trial 00000 after report" in window.text("#answer"), "the branch")
    window.page.click("[data-do=stop]")
    window.until(lambda: window.text("#answer") == "Stopped by command", "the answer")
    window.until(lambda: "STOPPED" in window.text("#cards"), "the trial to end")
    window.page.go_back()
    window.until(lambda: window.page.locator("#list tbody tr").count() == 3, "the branch")
    window.until(lambda: "0.0321" in window.cells("2") and window.cells("2")[1] == "RUNNING", "its training")
    window.until(lambda: any("00000 after report" in cell for cell in window.cells("2")), "its parent")


def steer(window: Window) -> None:
    """Enqueue a configuration, which is tried next, and one that is refused; change a setting."""
    window.page.wait_for_selector("#wheel:not([hidden])")
    window.page.fill("[name=max_concurrent]", "3")
    window.page.click("[data-form=set] button")
    window.until(lambda: "max_concurrent=3" in window.text("#answer"), "the answer")
    window.page.fill("[name=config]", "lr=0.0123")
    window.page.click("[data-form=enqueue] button")
    window.until(lambda: window.text("#answer").startswith("Enqueued"), "the answer")
    window.until(lambda: "0.0123" in window.cells("3"), "the enqueued trial")
    window.page.fill("[name=config]", "rl=1")
    window.page.click("[data-form=enqueue] button")
    window.until(lambda: "'rl'" in window.text("#answer"), "the refusal")
    assert window.page.get_attribute("#answer", "data-ok") == "no"
    window.page.fill("[name=max_concurrent]", "1")
    window.page.click("[data-form=set] button")
    window.until(lambda: "max_concurrent=1" in window.text("#answer"), "the answer")
