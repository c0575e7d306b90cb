"""The HTML report of a sweep: one file that fetches nothing, whose data is text and never run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tunelight.errors import StorageError
from tunelight.extras.report.page import PARTS, page
from tunelight.record import write_sweep_file
from tunelight.reporting import report
from tunelight.results import SweepResults

EVIL = "</script><script>window.evil = 1</script><!--<img src=x onerror='window.evil = 2'>&amp;"


class Page(HTMLParser):
    """What a browser makes of a page: elements with their attributes, and scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attrs, known = self.scripts[-1]
            self.scripts[-1] = attrs, known + data
            return
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    @property
    def data(self) -> dict[str, Any]:
        """The data that the page holds, by name."""
        packed = {attrs["id"]: (attrs["type"], text) for attrs, text in self.scripts if "id" in attrs}
        found = {
            name: json.loads(text if kind == "application/json" else gzip.decompress(base64.b64decode(text)))
            for name, (kind, text) in packed.items()
            if str(name).startswith("data-")
        }
        return {str(name).removeprefix("data-"): value for name, value in found.items()}


def strings(value: Any) -> list[str]:
    """Return all text in some data."""
    if isinstance(value, str):
        return [value]
    inside = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in inside for text in strings(part)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits")


@pytest.fixture(scope="module")
def source(results: SweepResults) -> str:
    return page(results)


def evil(folder: Path) -> SweepResults:
    folder.mkdir(parents=True)
    write_sweep_file(folder, {"scheduler": EVIL, "train": EVIL})
    sweep = Sweep(folder, metric=EVIL, rungs={"by": "training_iteration", "at": [1]})
    for number in range(6):
        trial = sweep.run(**{EVIL: f"{EVIL}{number % 2}", "n": number})
        gang = {"gang": "g", "nodes": [EVIL], "warm": False, "began": 1000.0, "ready": 1000.0}
        sweep.callback.note(f"failed: {EVIL}", trial.trial_id)
        sweep.clock.now += 1
        sweep.report(trial, 1, 1.0, own={"gang": gang, "metrics": {EVIL: float(number)}})
    sweep.fail(trial, message=EVIL, traceback=EVIL)
    sweep.callback.close()
    return SweepResults.load(folder)


def test_it_is_one_file_that_fetches_nothing_and_only_its_own_three_scripts_may_run(results, tmp_path):
    path = report(results, tmp_path / "sub" / "a.html")
    assert path == tmp_path / "sub" / "a.html"
    found = Page(path.read_text())
    assert not [tag for tag, attrs in found.tags if "src" in attrs or tag in ("link", "iframe", "object")]
    assert all((attrs["href"] or "").startswith("#") for tag, attrs in found.tags if "href" in attrs)
    policy = next(str(attrs["content"]) for tag, attrs in found.tags if "http-equiv" in attrs)
    assert "default-src 'none'" in policy
    assert "http" not in policy
    run = [text for attrs, text in found.scripts if attrs.get("type") is None]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    opener, plotly, scripts = re.findall(r"'sha256-([^']+)'", policy)
    assert [opener] == hashes
    packed = {attrs["id"]: text for attrs, text in found.scripts if str(attrs.get("id")).startswith("run-")}
    assert [*packed] == ["run-plotly", "run-page"]
    opened = gzip.decompress(base64.b64decode(packed["run-plotly"])), packed["run-page"].encode()
    assert [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in opened] == [plotly, scripts]
    assert report(results, tmp_path) == tmp_path / "report.html"
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="Choose a path that can be written"):
        report(results, tmp_path / "file" / "a.html")


def test_it_holds_the_state_of_the_live_page_with_every_section_and_every_trial(results, source):
    data = Page(source).data
    assert [name for name in data if name.startswith("part-")] == [f"part-{name}" for name in PARTS]
    drawn = {name for name in PARTS if (data[f"part-{name}"] or {}).get("figure", {}).get("data")}
    assert drawn == {"history", "importances", "slices"}
    assert data["part-learning_curves"] is None  # the page's own curves are those of all trials
    assert len(data["state"]["curves"]) == data["state"]["of"] == len(results)
    assert [row["i"] for row in data["state"]["rows"]] == [trial.index for trial in results.trials]
    assert (data["state"]["rows"][4]["state"], data["state"]["rows"][4]["last"]) == ("DIVERGED", "nan")
    assert [name for name in data if name.startswith("trial-")] == [f"trial-{trial.index}" for trial in results]


def test_what_others_wrote_is_text_and_no_markup(tmp_path: Path) -> None:
    found = Page(page(evil(tmp_path / "<b>sweep")))
    assert len([tag for tag, _ in found.tags if tag == "script"]) == len(found.data) + 3
    assert not [tag for tag, _ in found.tags if tag in ("img", "b")]
    assert not [attrs for _, attrs in found.tags if any(name.startswith("on") for name in attrs)]
    assert "<b>sweep" in found.text
    for attrs, text in found.scripts:
        assert not str(attrs.get("id")).startswith("data-") or "<" not in text
    for name in ("state", "part-about", "part-failures", "part-notes", "trial-5"):
        assert any(EVIL in said for said in strings(found.data[name])), name
    for name, section in found.data.items():
        assert not isinstance(section, dict) or "<img" not in json.dumps(section.get("figure")), name  # for plotly


def told(path: Path) -> SweepResults:
    """Record a trial on two nodes, with a log, a note and a report that names no epoch, and one that was stopped."""
    path.mkdir()
    sweep = Sweep(path)
    one = sweep.run(lr=0.1, long="y" * 300)
    gang = {"gang": "g", "nodes": ["a#1", "a#1", "b#2", "a#1"], "warm": False, "began": 1001.0, "ready": 1003.5}
    for number in range(1, 4):
        sweep.clock.now += 1
        own = {"gang": gang} if number == 1 else {}
        sweep.report(one, number, 100.0**-number, epoch=None, own=own)
    for number in (1, 3):  # the first was deleted since
        kept = {"path": f"trial_00000/report-{number}.ckpt", "training_iteration": number, "value": 0.1, "size": 8}
        sweep.callback.record.append("checkpoint", trial=one.trial_id, **kept)
    sweep.callback.note("went on from report 1", one.trial_id)
    (path / "trial_00000").mkdir(exist_ok=True)
    (path / "trial_00000" / "report-3.ckpt").touch()
    lines = [f"[0] line {number} <u>" for number in range(50)]
    (path / "trial_00000" / "log.txt").write_text("\n".join(lines))
    sweep.fail(one, message="no <i>luck</i>", traceback="Traceback")
    two = sweep.run(0.5)
    sweep.callback.stop(two.trial_id)
    sweep.callback.close()
    return SweepResults.load(path)


def test_a_trial_has_curve_configuration_placement_log_error_and_notes(tmp_path: Path) -> None:
    data = Page(page(told(tmp_path / "s"))).data
    blocks = data["trial-0"]
    assert blocks[0] == {"head": "Trial 0 failed"}
    assert data["trial-1"][0]["head"] == "Trial 1 stopped (by command)"
    chart = next(block for block in blocks if "chart" in block)
    assert chart["title"] == "loss; best 1e-06 at report 3"
    assert chart["chart"] == {"unit": "report", "x": [1, 2, 3], "y": [1e-2, 1e-4, 1e-6], "mark": [3, 1e-6], "log": True}
    shown = "\n".join(strings(blocks))
    for text in ("y" * 300, "a#1: ranks 0-1, 3; b#2: rank 2", "cold, 2.5 s", "no <i>luck</i>", "went on from report 1"):
        assert text in shown
    assert [f"report-{number}.ckpt" in shown for number in (1, 3)] == [False, True]
    assert [f"[0] line {number} <u>" in shown for number in (19, 20, 49)] == [False, True, True]


def test_of_many_trials_the_best_and_the_failed_have_details(tmp_path: Path) -> None:
    results = record(tmp_path / "many", trials=220, epochs=8)
    for trial in results:
        trial.path.mkdir(exist_ok=True)
        (trial.path / "log.txt").write_text("x" * 50_000)
    source = page(results)
    found = Page(source)
    kept = {name for name in found.data if name.startswith("trial-")}
    failed = [f"trial-{trial.index}" for trial in results if trial.failed]
    assert kept == {f"trial-{trial.index}" for trial in results.top(50)} | set(failed[:50])
    said = f"details of the 50 best and of the first 50 of {len(failed)} that failed"
    assert said in str(dict(found.tags)["body"]["data-told"])
    assert len(found.data["state"]["rows"]) == 220
    assert found.data["part-learning_curves"]["figure"]["data"]  # of all, where the page's own are of the best
    assert sum(len(text) for attrs, text in found.scripts if str(attrs.get("id")).startswith("data-")) < 1_000_000


def running(sweep: Sweep) -> None:
    for number in range(3):
        trial = sweep.run(lr=0.1 * number)
        sweep.clock.now += 1
        if number:
            sweep.report(trial, 1, 0.5 * number, latency=1.0, epoch=None)


def only_failed(sweep: Sweep) -> None:
    for value in (0.5, 0.25):
        trial = sweep.run(lr=value)
        sweep.report(trial, 1, value, epoch=None)
        sweep.fail(trial)


def not_begun(sweep: Sweep) -> None:
    sweep.add(lr=0.1)
    sweep.step()


@pytest.mark.parametrize("make", [running, only_failed, not_begun])
@pytest.mark.parametrize("several", [False, True])
def test_what_is_not_known_is_not_written_as_if_it_were(tmp_path: Path, make: Any, several: bool) -> None:
    further: dict[str, Any] = {"further": [["latency", "min"]]} if several else {}
    sweep = Sweep(tmp_path, **further)
    if several:
        write_sweep_file(tmp_path, {"metric": ["loss", "latency"], "mode": ["min", "min"]})
    make(sweep)
    data = Page(page(SweepResults.load(tmp_path))).data
    figures = [section.pop("figure", None) for section in data.values() if isinstance(section, dict)]
    assert figures
    said = "\n".join(strings(data))
    assert re.search(r"\bNaN\b|\bnan\b|\bNone\b|\bnull\b|\b1 trials\b", said) is None
    assert data["state"]["head"]["state"] == "not ended"
    sweep.callback.close()
