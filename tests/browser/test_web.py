"""A person before the live page, in headless Chromium: steers a real sweep; and pages, live or saved, held alike."""

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
from tests.unit.extras.web.serving import serving
from tests.unit.reporting.test_report import EVIL, evil
from tunelight.record import read_record
from tunelight.reporting import report
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


FIGURES = ("parallel", "history", "importances", "slices")
SPOT = """() => {
    const plot = document.getElementById("canvas"), { _size: size, xaxis, yaxis } = plot._fullLayout;
    const trace = plot._fullData.find((one) => one.name.startsWith("finished")), box = plot.getBoundingClientRect();
    return [box.left + size.l + xaxis.d2p(trace.x[5]), box.top + size.t + yaxis.d2p(trace.y[5])];
}"""

OWN_TABLE = """() => {
    const list = document.createElement("table");
    list.createTHead();
    list.createTBody();
    document.querySelector("main").prepend(list);
    const table = window.own = new tunelight.LiveTable(list, "thing", () => {});
    const link = (row) => {
        const made = document.createElement("a");
        Object.assign(made, { textContent: row.key, href: "#" + row.key, id: row.key });
        return made;
    };
    table.sorted = { name: "value", up: true };
    table.shape([{ name: "key", value: (row) => row.key, show: link }, { name: "value", value: (row) => row.value }]);
    for (const [key, value] of [["first", 1], ["second", 2], ["third", 3]]) table.set(key, { key, value });
}"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    results = record(tmp_path_factory.mktemp("runs") / "digits", trials=30)
    results.trials[3].path.mkdir()
    (results.trials[3].path / "log.txt").write_text("".join(f"line {number}\n" for number in range(200)))
    return results


@pytest.fixture(scope="module", params=["live", "saved"])
def address(request: Any, sweep: SweepResults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "saved":
        yield f"file://{report(sweep, tmp_path_factory.mktemp('report'))}"
        return
    with serving(sweep.folder.parent) as served:
        yield served.address.replace("/?", "/sweep/digits?")


class SweepPage(Window):
    """A sweep's page, live or saved."""

    def __init__(self, context: Any, address: str) -> None:
        super().__init__(context, address)
        self.page.wait_for_selector("#list tbody tr")
        self.page.wait_for_selector("#canvas[data-drawn]")

    def heads(self) -> list[str]:
        return [str(text) for text in self.page.locator("#list th").all_inner_texts()]

    def column(self, name: str) -> list[str]:
        number = next(n for n, head in enumerate(self.heads(), 1) if head.strip(" ▲▼") == name)
        return [str(text) for text in self.page.locator(f"#list tbody tr > :nth-child({number})").all_inner_texts()]

    def point_at_a_curve(self) -> str:
        """Move the pointer to the sixth point of a finished trial's curve; return what is shown there."""
        self.page.locator("#canvas").scroll_into_view_if_needed()

        def there() -> Any:
            across, down = self.page.evaluate(SPOT)
            self.page.mouse.move(across - 1, down)
            self.page.mouse.move(across, down)
            self.page.wait_for_timeout(200)
            return self.page.locator("#canvas.leads .hovertext").count()

        self.until(there, "the value")  # sections above may still come, and move it down
        return str(self.page.locator("#canvas .hoverlayer").text_content())

    def draw(self, figure: str) -> Any:
        """Scroll to a figure, and return it once it is drawn."""

        def there() -> Any:
            self.page.locator(f"#{figure}").evaluate("(part) => part.scrollIntoView()")
            return self.page.locator(f"#{figure} .plot[data-drawn]").count()

        self.until(there, figure, 60)
        return self.page.locator(f"#{figure} .plot")


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[SweepPage]:
    with SweepPage(chromium.new_context(viewport=SIZES["wide"], color_scheme="light"), address) as found:
        yield found
    assert all(url.startswith((address.split("/sweep", maxsplit=1)[0], "data:", "blob:")) for url in found.asked)


def test_the_table_begins_with_the_best_and_shows_hyperparameters_before_what_a_trial_took(page, sweep):
    assert page.heads() == [
        "trial", "state", "best loss", "model.lr", "model.hidden", "opt", "momentum",
        "last loss", "epochs", "time", "workers",
    ]  # fmt: skip
    values = sorted(trial.value for trial in sweep.trials if trial.value is not None)
    assert page.column("best loss") == [str(float(f"{value:.4g}")) for value in values]
    assert page.page.locator("th[aria-sort=ascending]").inner_text() == "best loss"
    assert "configuration" in page.text("#best")
    assert page.text("#best .value a") == f"trial {sweep.best.index}"


def test_a_click_on_a_heading_sorts_and_a_filter_leaves_rows_out(page: SweepPage, sweep: SweepResults) -> None:
    button = page.page.locator("#list th button:text-is('model.lr')")
    button.click()
    page.until(lambda: (rates := [float(text) for text in page.column("model.lr")]) == sorted(rates), "the order")
    button.click()
    page.until(lambda: (rates := [float(text) for text in page.column("model.lr")]) == sorted(rates)[::-1], "the other")
    page.page.fill("#filter", "lr < 0.001 and state = STOPPED")
    page.until(lambda: set(page.column("state")) == {"STOPPED"}, "the rows")
    page.page.fill("#filter", "finished SGD")
    wanted = {str(one.index) for one in sweep.trials if one.state == "FINISHED" and one.config["opt"] == "sgd"}
    page.until(lambda: set(page.column("trial")) == wanted, "the rows with both words")
    assert page.text("#count") == f"{len(wanted)} of 30 trials"
    page.page.fill("#filter", "lrr < 1")
    page.until(lambda: page.text("#count").startswith("There is no column lrr. There are: trial, "), "the refusal")


def test_a_click_among_reports_lands_where_it_was_aimed(page: SweepPage) -> None:
    page.page.evaluate(OWN_TABLE)
    page.page.wait_for_selector("#second")
    page.page.locator("#second").hover()
    page.page.mouse.down()
    page.page.evaluate("own.set('second', { key: 'second', value: 0 }); own.set('new', { key: 'new', value: -1 })")
    page.until(lambda: page.page.locator("#new").count(), "the new row")
    keys = "[...own.table.tBodies[0].rows].map((line) => line.dataset.key)"
    assert page.page.evaluate(keys) == ["first", "second", "third", "new"]  # none moves under the pointer
    assert page.page.evaluate("document.activeElement.id") == "second"
    page.page.mouse.up()
    page.until(lambda: page.page.url.endswith("#second"), "the link to be followed")
    page.page.mouse.move(5, 5)
    page.until(lambda: page.page.evaluate(keys) == ["new", "second", "first", "third"], "the order")


def test_curves_have_ticks_and_grid_lines_and_show_a_value_under_the_pointer(page, sweep):
    for axis in "xy":
        assert page.page.locator(f"#canvas .{axis}grid").count() >= 3
        assert page.page.locator(f"#canvas .{axis}tick").count() >= 3
    said = re.search(r"trial (\d+), epoch 6: ([0-9.]+)", page.point_at_a_curve())
    assert said is not None
    assert float(said[2]) == pytest.approx(sweep.trials[int(said[1])].history[5]["loss"], rel=1e-4)


def test_a_click_on_a_curve_leads_to_its_trial_and_back(page: SweepPage) -> None:
    number = re.findall(r"trial (\d+)", page.point_at_a_curve())[0]
    page.page.mouse.down()
    page.page.mouse.up()
    page.page.wait_for_url(lambda url: url.endswith((f"/trial/{number}", f"#trial-{number}")))
    page.until(lambda: f"Trial {number} finished" in page.text("#trial"), "the trial")
    assert "FINISHED" in page.text("#cards")
    assert "configuration" in page.text("#trial")
    assert "Placement" in page.text("#trial")
    page.page.wait_for_selector("#trial .plot[data-drawn]")
    page.fits()
    page.page.go_back()
    page.page.wait_for_selector("#list tbody tr")
    assert len(page.column("trial")) == 30


def test_a_click_on_a_row_opens_its_trial_with_its_log(page: SweepPage) -> None:
    page.page.click("#list tr[data-key='3'] td:nth-child(2)")
    page.until(lambda: "line 199" in page.text("main"), "its log")
    page.until(lambda: "Trial 3 failed" in page.text("#trial"), "its details")
    assert "<script>alert('error')</script>" in page.text("#trial")
    assert page.page.locator("#wheel:visible").count() == 0  # nobody runs it


def test_each_figure_is_drawn(page: SweepPage) -> None:
    mark = {"importances": ".barlayer .point", "parallel": ".parcoords .y-axis"}
    for name in FIGURES:
        figure = page.draw(name)
        assert figure.locator(mark.get(name, ".scatterlayer .point")).count() > 0, name
        assert len(page.text(f"#{name} h2")) > 10, name


def test_a_brush_on_the_parallel_coordinates_leaves_the_other_rows_out(page: SweepPage, sweep: SweepResults) -> None:
    page.draw("parallel")
    axis = page.page.locator("#parallel .axis-brush").last.bounding_box()
    across = axis["x"] + axis["width"] / 2
    page.page.mouse.move(across, axis["y"] + 0.98 * axis["height"])
    page.page.mouse.down()
    page.page.mouse.move(across, axis["y"] + 0.8 * axis["height"], steps=5)
    page.page.mouse.move(across, axis["y"] + 0.6 * axis["height"], steps=5)
    page.page.mouse.up()
    page.until(lambda: "selected in the parallel coordinates" in page.text("#count"), "the selection")
    kept = [int(text) for text in page.column("trial")]
    best = [trial.index for trial in sorted(sweep.trials, key=lambda trial: trial.value or 9)]
    assert 0 < len(kept) < 30
    assert kept == best[: len(kept)]
    page.page.mouse.dblclick(across, axis["y"] + 0.2 * axis["height"])
    page.until(lambda: len(page.column("trial")) == 30, "all of them")


def test_light_and_dark_change_paper_and_figures(page: SweepPage) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#canvas .xtitle')).fill"
    light = page.page.evaluate(f"[{paper}, {ink}]")
    page.page.click("#theme")
    page.page.wait_for_function(f"{paper} !== '{light[0]}' && {ink} !== '{light[1]}'")


@SCREENS
def test_no_page_is_wider_than_its_screen(chromium: Any, address: str, size: str, scheme: str) -> None:
    outside = """(room) => [...document.querySelectorAll("body *")]
        .filter((one) => !one.closest(".wide, .scroll, pre, svg") && one.getBoundingClientRect().right > room + 1)
        .map((one) => one.outerHTML.slice(0, 80))"""
    with SweepPage(chromium.new_context(viewport=SIZES[size], color_scheme=scheme), address) as page:
        for name in FIGURES:
            page.draw(name)
        assert page.page.evaluate(outside, SIZES[size]["width"]) == []
        page.fits()
        page.page.evaluate("window.scrollTo(0, 0)")


def test_an_address_that_names_a_trial_opens_it(chromium: Any, sweep: SweepResults, tmp_path: Path) -> None:
    with Window(chromium.new_context(), f"file://{report(sweep, tmp_path)}#trial-3") as window:
        assert "Trial 3 failed" in window.text("#trial")
        window.page.click("text=Back to all trials")
        window.page.wait_for_selector("#list tbody tr")
        window.page.click("#failures summary a >> nth=1")
        window.until(lambda: "Trial 4 diverged" in window.text("#trial"), "the next one that failed")
        window.page.click("nav a[href='#events']")
        window.until(lambda: window.page.evaluate("window.scrollY") > 500, "the events")


def test_what_is_printed_has_every_figure_on_white(chromium: Any, sweep: SweepResults, tmp_path: Path) -> None:
    with Window(chromium.new_context(viewport=SIZES["wide"]), f"file://{report(sweep, tmp_path)}") as window:
        window.page.click("#theme")
        window.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        everything = "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn)"
        window.page.wait_for_function(everything, timeout=60_000)
        window.page.emulate_media(media="print")
        assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert window.page.locator("nav").is_hidden()
        assert len(window.page.pdf()) > 50_000
        window.page.evaluate("window.dispatchEvent(new Event('afterprint'))")


def test_what_others_wrote_is_shown_and_never_run(chromium: Any, tmp_path: Path) -> None:
    with Window(chromium.new_context(), f"file://{report(evil(tmp_path / 'evil'), tmp_path)}") as window:
        for plot in window.page.query_selector_all(".plot"):
            plot.evaluate("(plot) => plot.scrollIntoView()")
            drawn = "(plot) => plot.dataset.drawn || plot.closest('[hidden]')"
            window.page.wait_for_function(drawn, arg=plot, timeout=60_000)
        assert window.page.evaluate("window.evil") is None
        assert EVIL in str(window.page.locator("#list thead").text_content())
        for name in ("history", "slices", "parallel"):
            if plot := window.page.query_selector(f"#{name} .plot"):
                shown = str(plot.text_content())
                assert EVIL[:20] in shown, name
                assert "&lt;" not in shown, name
        window.page.evaluate("window.location.hash = 'trial-5'")
        window.until(lambda: EVIL in str(window.page.locator("#trial").text_content()), "the trial")
        assert window.page.evaluate("window.evil") is None
