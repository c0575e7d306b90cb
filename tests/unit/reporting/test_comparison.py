"""Several sweeps in one report: what is compared, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tests.unit.reporting.test_report import EVIL, Page, evil, inlined, strings
from tunelight.errors import SettingsError
from tunelight.extras.figures.curves import best_by_trials, colour_of
from tunelight.extras.report.comparison import compared
from tunelight.extras.report.page import comparison
from tunelight.record import write_sweep_file
from tunelight.reporting import report
from tunelight.results import SweepResults


def sweep_of(folder: Path, *trials: tuple[float, int, list[float]], mode: str = "min", **sweep: Any) -> SweepResults:
    """Record trials one after another, each of (seconds a report, workers, values); the last one still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Sweep(folder, mode=mode, **sweep)
    for number, (seconds, workers, values) in enumerate(trials):
        trial = made.add(lr=number / 10, width=32)
        made.start(trial)
        for place, value in enumerate(values, start=1):
            made.clock.now += seconds
            gang = {"gang": "g", "nodes": ["n"] * workers, "warm": True, "began": made.clock.now, "ready": 0.0}
            own = {"gang": {**gang, "began": made.clock.now - seconds} if place == 1 else None}
            made.report(trial, place, value, own=own, timestamp=made.clock.now)
        if number < len(trials) - 1:
            made.complete(trial)
    made.callback.record.close()
    return SweepResults.load(folder)


def test_failed_trials_make_no_best(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, mode="max")
    for value, fails in ((0.9, True), (0.5, False), (0.4, False), (0.6, False)):
        trial = sweep.add()
        sweep.start(trial)
        sweep.report(trial, 1, value)
        (sweep.fail if fails else sweep.complete)(trial)
    sweep.end()
    (line,) = best_by_trials({"one": SweepResults.load(tmp_path)}).data
    assert list(zip(line.x, line.y, strict=True)) == [(2, 0.5), (3, 0.5), (4, 0.6)]


def test_each_sweep_is_a_line_of_its_colour(tmp_path: Path) -> None:
    sweeps = {
        "one": sweep_of(tmp_path / "one", (10.0, 2, [1.0, 0.5]), (10.0, 2, [0.9])),
        "two": sweep_of(tmp_path / "two", (5.0, 4, [0.7, 0.6])),
        "three": sweep_of(tmp_path / "three", (5.0, 4, [])),
    }
    drawn = best_by_trials(sweeps)
    assert [line.name for line in drawn.data] == ["one", "two"]
    assert [line.line.color for line in drawn.data] == [colour_of(0), colour_of(1)]
    assert (list(drawn.data[0].x), list(drawn.data[0].y)) == ([1, 2], [0.5, 0.5])
    assert "without a value yet: three" in drawn.layout.title.text


def test_the_page_has_a_row_and_a_section_for_each_sweep(tmp_path: Path) -> None:
    sweeps = [record(tmp_path / "a", trials=12), record(tmp_path / "b", trials=30, searcher="tpe")]
    path = report(sweeps, tmp_path / "both.html")
    sections = inlined(path.read_text())["comparison"]
    assert list(sections) == ["sweeps", "by_trials", "sweep-0", "sweep-1"]
    table, settings = (block for block in sections["sweeps"]["blocks"] if "names" in block)
    assert table["names"][:6] == ["sweep", "trials", "states", "best loss", "by trial", "time"]
    assert [(row[0]["text"], row[0]["href"], row[1]) for row in table["rows"]] == [
        ("a", "#sweep-0", 12),
        ("b", "#sweep-1", 30),
    ]
    assert table["rows"][0][2] == "2 finished, 6 stopped early, 2 diverged, 2 failed"
    best = [results.best for results in sweeps]
    assert [row[3:5] for row in table["rows"]] == [[one.value, one.index] for one in best]
    assert table["names"][6:] == ["model.lr", "model.hidden"]  # opt is the same in both
    assert [row[6] for row in table["rows"]] == [one.config["model"]["lr"] for one in best]
    assert settings["names"] == ["sweep", "searcher", "num_samples"]
    assert "Best: trial" in str(sections["sweep-0"])


def test_search_spaces_stand_side_by_side_and_what_differs_is_marked(tmp_path: Path) -> None:
    same, lr = {"opt": {"choice": ["sgd", "adam"]}}, {"loguniform": [0.001, 0.1]}
    sweeps = [
        record(tmp_path / "a", trials=3, space={**same, "lr": lr}),
        record(tmp_path / "b", trials=3, space={**same, "lr": {"uniform": [0, 1]}, "<b>": 1}),
    ]
    spaces = compared(sweeps)["sweeps"]["blocks"][-1]
    assert spaces["names"] == ["key", "a", "b"]
    assert spaces["rows"] == [
        ["≠ lr", "loguniform 0.001, 0.1", "uniform 0, 1"],
        ["≠ <b>", None, 1],
        ["opt", "choice sgd, adam", "choice sgd, adam"],
    ]


def test_sweeps_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    sections = compared([sweep_of(tmp_path / name / "s", (1.0, 1, [1.0])) for name in ("old", "new")])
    assert [sections[f"sweep-{number}"]["title"] for number in (0, 1)] == ["old/s", "new/s"]


@pytest.mark.parametrize("other", [{"mode": "max"}, {"metric": "acc"}])
def test_sweeps_that_are_judged_differently_are_refused_before_a_file_is_written(tmp_path: Path, other: Any) -> None:
    one, two = sweep_of(tmp_path / "one", (1.0, 1, [1.0])), sweep_of(tmp_path / "two", (1.0, 1, [1.0]), **other)
    judged = f"one by 'loss' (min); two by '{other.get('metric', 'loss')}' ({other.get('mode', 'min')})"
    with pytest.raises(SettingsError) as caught:
        report([one, two], tmp_path / "report.html")
    assert judged in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_a_sweep_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    one = sweep_of(tmp_path / "one", (1.0, 1, [1.0]))
    with pytest.raises(SettingsError, match="is given twice"):
        report([one, SweepResults.load(tmp_path / "one")], tmp_path / "report.html")
    with pytest.raises(SettingsError, match="list of them is empty"):
        report([], tmp_path / "report.html")


def test_a_list_of_one_is_the_report_of_that_sweep(tmp_path: Path) -> None:
    one = sweep_of(tmp_path / "one", (1.0, 1, [1.0]))
    assert 'id="trials"' in report([one], tmp_path / "report.html").read_text()


def test_what_others_wrote_is_text(tmp_path: Path) -> None:
    odd = evil(tmp_path / "<b>sweep")
    other = tmp_path / "other"
    other.mkdir()
    write_sweep_file(other, {"train": EVIL[:-1]})
    found = Page(comparison([odd, sweep_of(other, (1.0, 1, []), metric=EVIL)]))
    assert "img" not in [tag for tag, _ in found.tags]
    assert not [attrs for _, attrs in found.tags if any(name.startswith("on") for name in attrs)]
    assert len([text for attrs, text in found.scripts if attrs.get("type") is None]) == 2
    assert any(EVIL in said for said in strings(found.data))
    assert "<b>sweep" in found.text


def test_sweeps_without_any_value_are_compared_too(tmp_path: Path) -> None:
    sections = compared([sweep_of(tmp_path / name, (1.0, 1, [])) for name in ("a", "b")])
    assert "No trial that did not fail has reported a number as loss yet." in str(sections["sweeps"])
