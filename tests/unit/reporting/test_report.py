"""The HTML report: one file that fetches nothing, with text that is shown and never run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.recording import Sweep
from tests.unit.sweeps import record
from tunelight.errors import StorageError
from tunelight.record import write_sweep_file
from tunelight.reporting import report
from tunelight.reporting.page import page
from tunelight.results import SweepResults
from tunelight.results.figures import FIGURES

EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>&amp;"


class Page(HTMLParser):
    """What a browser makes of a page: elements with their attributes, scripts, rows of the table."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attrs, known = self.scripts[-1]
            self.scripts[-1] = attrs, known + data
            return
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits")


def evil(folder: Path) -> SweepResults:
    folder.mkdir(parents=True)
    write_sweep_file(folder, {"scheduler": EVIL, "train": EVIL})
    sweep = Sweep(folder, metric=EVIL, rungs={"by": "training_iteration", "at": [1]})
    for number in range(6):
        trial = sweep.add(**{EVIL: f"{EVIL}{number % 2}", "n": number})
        sweep.start(trial)
        gang = {"gang": "g", "nodes": [EVIL], "warm": False, "began": 1000.0, "ready": 1000.0}
        sweep.callback.note(f"failed: {EVIL}", trial.trial_id)
        sweep.clock.now += 1
        sweep.report(trial, 1, 1.0, own={"gang": gang, "metrics": {EVIL: float(number)}})
    sweep.fail(trial, message=EVIL, traceback=EVIL)
    sweep.callback.close()
    return SweepResults.load(folder)


def test_it_is_one_file_that_fetches_nothing(results: SweepResults, tmp_path: Path) -> None:
    path = report(results, tmp_path / "sub" / "a.html")
    assert path == tmp_path / "sub" / "a.html"
    found = Page(path.read_text())
    assert not [tag for tag, attrs in found.tags if "src" in attrs or tag in ("link", "iframe", "object")]
    assert all((attrs["href"] or "").startswith("#") for tag, attrs in found.tags if "href" in attrs)
    policy = next(str(attrs["content"]) for tag, attrs in found.tags if "http-equiv" in attrs)
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_a_folder_gets_a_report_in_it(results: SweepResults, tmp_path: Path) -> None:
    assert report(results, tmp_path) == tmp_path / "report.html"


def test_it_holds_every_figure_and_one_row_a_trial(results: SweepResults) -> None:
    found = Page(page(results))
    data = {attrs["id"]: json.loads(text) for attrs, text in found.scripts if attrs.get("type") == "application/json"}
    assert list(data) == [f"data-{name}" for name in FIGURES]
    assert all(figure["data"] for figure in data.values())
    head = next(row for row in found.rows if row and row[0] == "trial")
    assert head == [
        "trial", "state", "best loss", "last loss", "epochs", "seconds", "workers",
        "model.lr", "model.hidden", "opt", "momentum",
    ]  # fmt: skip
    rows = found.rows[found.rows.index(head) + 1 :]
    assert [row[0] for row in rows[: len(results)]] == [str(trial.index) for trial in results.trials]
    assert rows[4][1:4] == ["DIVERGED", f"{results.trials[4].value:.4g}", "nan"]


def test_only_its_own_two_scripts_may_run(results: SweepResults) -> None:
    import base64
    import hashlib

    found = Page(page(results))
    policy = next(str(attrs["content"]) for tag, attrs in found.tags if "http-equiv" in attrs)
    run = [text for attrs, text in found.scripts if attrs.get("type") is None]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert len(run) == 2


def test_what_others_wrote_is_text_and_no_markup(tmp_path: Path) -> None:
    source = page(evil(tmp_path / "<b>sweep"))
    found = Page(source)
    assert len([tag for tag, _ in found.tags if tag == "script"]) == len(FIGURES) + 2
    assert not [tag for tag, _ in found.tags if tag in ("img", "b")]
    assert not [attrs for _, attrs in found.tags if any(name.startswith("on") for name in attrs)]
    assert EVIL in found.text
    assert "<b>sweep" in found.text


def test_a_figures_text_is_no_markup_for_plotly(tmp_path: Path) -> None:
    found = Page(page(evil(tmp_path / "sweep")))
    for attrs, text in found.scripts:
        if attrs.get("type") == "application/json":
            assert "<img" not in json.dumps(json.loads(text)), attrs["id"]
            assert "<" not in text


@pytest.mark.parametrize("trials", [0, 1])
def test_a_sweep_with_next_to_nothing_has_a_report(tmp_path: Path, trials: int) -> None:
    sweep = Sweep(tmp_path)
    if trials:
        sweep.add(lr=0.1)
        sweep.step()
    found = Page(page(SweepResults.load(tmp_path)))
    assert "No trial has reported a number as loss yet." in found.text
    sweep.callback.close()


def told(path: Path) -> SweepResults:
    """Record one trial on two nodes, with a log, a note and a report that names no epoch."""
    path.mkdir()
    sweep = Sweep(path)
    one = sweep.add(lr=0.1, long="y" * 300)
    sweep.start(one)
    gang = {"gang": "g", "nodes": ["a#1", "a#1", "b#2", "a#1"], "warm": False, "began": 1001.0, "ready": 1003.5}
    usage = {"cpu": 1.84, "memory": 1_240_000_000, "gpu": None, "gpu_memory": None}
    used = ({"rank": 0, "samples": 9, "last": usage, "peak": usage, "gpu": None},)
    for number in range(1, 4):
        sweep.clock.now += 1
        own = {"gang": gang, "usage": used} if number == 1 else {}
        sweep.report(one, number, 10.0**-number, epoch=None, own=own)
    sweep.callback.note("went on from report 1", one.trial_id)
    (path / "trial_00000").mkdir(exist_ok=True)
    lines = [f"[0] line {number} <u>" for number in range(50)]
    (path / "trial_00000" / "log.txt").write_text("\n".join(lines))
    sweep.fail(one, message="no <i>luck</i>", traceback="Traceback")
    sweep.callback.close()
    return SweepResults.load(path)


def section(found: Page) -> str:
    """Return the text of the first trial's section."""
    return found.text.partition("open it below")[2].partition("Back to the table")[0]


def test_a_trial_s_section_has_curve_configuration_placement_log_error_and_notes(tmp_path: Path) -> None:
    found = Page(page(told(tmp_path / "s")))
    shown = section(found)
    assert "Trial 0 failed, best loss 0.001" in shown
    assert "loss over reports 1 to 3, logarithmic scale; best 0.001 at report 3" in shown
    assert "y" * 300 in shown
    assert "a#1: ranks 0-1, 3; b#2: rank 2" in shown
    assert "cold, 2.5 s" in shown
    assert re.search(r"peak memory of a worker\s*1.2 GB\s*CPUs used\s*1.8", shown)
    assert [f"[0] line {number} <u>" in shown for number in (19, 20, 49)] == [False, True, True]
    assert "no <i>luck</i>" in shown
    assert "went on from report 1" in shown
    assert not [tag for tag, _ in found.tags if tag in ("u", "i")]
    path = next(str(attrs["d"]) for tag, attrs in found.tags if tag == "path" and attrs["class"] == "line")
    heights = [float(point.split(",")[1]) for point in re.split("[ML]", path)[1:]]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)  # decades are as far apart


def test_a_trial_s_section_says_why_it_was_stopped(tmp_path: Path) -> None:
    scheduler = SimpleNamespace(reason=lambda _: f"place 7 of 12 at rung 4 {EVIL}; the best 3 go on")
    sweep = Sweep(tmp_path, scheduler=scheduler)
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 4, 0.25, done=True)
    sweep.complete(trial)
    sweep.end()
    found = Page(page(SweepResults.load(tmp_path)))
    assert f"Trial 0 stopped (place 7 of 12 at rung 4 {EVIL}; the best 3 go on), best loss 0.25" in found.text


def test_a_row_links_to_what_is_inside_its_trial_s_section(results: SweepResults) -> None:
    found = Page(page(results))
    links = [attrs["href"] for tag, attrs in found.tags if tag == "a" and str(attrs["href"]).startswith("#trial-")]
    places = [number for number, (tag, attrs) in enumerate(found.tags) if str(attrs.get("id")).startswith("trial-")]
    assert {f"#{found.tags[number][1]['id']}" for number in places} == set(links)
    assert len(places) == len(results)
    assert {found.tags[number - 2][0] for number in places} == {"details"}  # with the summary in between


def test_each_column_but_the_first_can_be_left_out(results: SweepResults) -> None:
    found = Page(page(results))
    head = next(row for row in found.rows if row and row[0] == "trial")
    boxes = [attrs["data-column"] for tag, attrs in found.tags if tag == "input" and attrs["type"] == "checkbox"]
    assert boxes == [str(place) for place in range(1, len(head))]


def test_of_many_trials_the_best_and_the_failed_have_sections(tmp_path: Path) -> None:
    results = record(tmp_path / "many", trials=220, epochs=8)
    for trial in results:
        trial.path.mkdir(exist_ok=True)
        (trial.path / "log.txt").write_text("x" * 50_000)
    source = page(results)
    found = Page(source)
    kept = {str(attrs["id"]) for _, attrs in found.tags if str(attrs.get("id")).startswith("trial-")}
    failed = [f"trial-{trial.index}" for trial in results if trial.failed]
    assert kept == {f"trial-{trial.index}" for trial in results.top(50)} | set(failed[:50])
    assert f"Of 220 trials, the 50 best and the first 50 of {len(failed)} that failed can be opened" in found.text
    assert len([row for row in found.rows if row and row[0].isdecimal() and len(row) > 9]) == 220
    data = "".join(text for attrs, text in found.scripts if attrs.get("type"))
    scripts = sum(len(text) for _, text in found.scripts)
    assert len(source) - scripts < 1_200_000
    assert len(data) < 1_000_000


def running(sweep: Sweep) -> None:
    for number in range(3):
        trial = sweep.add(lr=0.1 * number)
        sweep.start(trial)
        sweep.clock.now += 1
        if number:
            sweep.report(trial, 1, 0.5 * number, latency=1.0, epoch=None)


def only_failed(sweep: Sweep) -> None:
    for value in (0.5, 0.25):
        trial = sweep.add(lr=value)
        sweep.start(trial)
        sweep.report(trial, 1, value, epoch=None)
        sweep.fail(trial)


def not_begun(sweep: Sweep) -> None:
    sweep.add(lr=0.1)
    sweep.step()


@pytest.mark.parametrize("make", [running, only_failed, not_begun])
@pytest.mark.parametrize("several", [False, True])
def test_what_is_not_known_is_not_written_as_if_it_were(tmp_path: Path, make: Any, several: bool) -> None:
    sweep = Sweep(tmp_path, **({"further": [["latency", "min"]]} if several else {}))
    if several:
        write_sweep_file(tmp_path, {"metric": ["loss", "latency"], "mode": ["min", "min"]})
    make(sweep)
    found = Page(page(SweepResults.load(tmp_path)))
    assert re.search(r"\bNaN\b|\bnan\b|\bNone\b|\bnull\b|\b1 trials\b", found.text) is None
    assert "The sweep had not ended when this was written." in found.text
    sweep.callback.close()


def test_a_figure_that_has_nothing_to_draw_is_a_sentence(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    found = Page(page(SweepResults.load(tmp_path)))
    assert not [attrs for _, attrs in found.tags if "data-figure" in attrs]
    assert "No trial has run yet." in found.text
    sweep.callback.close()


def test_a_path_that_cannot_be_written_is_an_error(results: SweepResults, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="Choose a path that can be written"):
        report(results, tmp_path / "file" / "a.html")


def test_notes_and_tags_that_people_gave_are_shown_as_text(tmp_path: Path) -> None:
    found = record(tmp_path)
    found.note(f"the baseline {EVIL}")
    found.tag("good")
    found.trials[0].note("diverges later")
    found.trials[0].tag("keep")
    shown = Page(page(SweepResults.load(tmp_path)))
    assert "Tags: good" in shown.text
    assert f": the baseline {EVIL}".replace("&amp;", "&amp;") in shown.text
    assert "Tags: keep" in shown.text
    assert ": diverges later" in shown.text
