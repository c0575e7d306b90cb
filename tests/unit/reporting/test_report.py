"""The HTML report: one file that fetches nothing, with text that is shown and never run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.recording import Sweep
from tests.unit.sweeps import record
from tunelight.errors import StorageError
from tunelight.record import write_sweep_file
from tunelight.reporting import FIGURES, report
from tunelight.reporting.page import page
from tunelight.results import SweepResults

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
        if attrs.get("type") == "application/json" and attrs["id"] != "data-parallel":  # its axes know no markup
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


def test_a_path_that_cannot_be_written_is_an_error(results: SweepResults, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="Choose a path that can be written"):
        report(results, tmp_path / "file" / "a.html")
