"""Which trial is the best, also by several metrics and by the mean of repeated trainings, wherever a sweep is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import tunelight as tl
from tests.kit.recording import ERROR, Sweep, Writer
from tests.unit.cli.test_command import call
from tests.unit.reporting.test_report import Page
from tunelight.errors import NoResultError, SettingsError
from tunelight.extras.earlier import read_earlier
from tunelight.extras.figures import history, learning_curves
from tunelight.extras.figures.data import values_of
from tunelight.extras.report.page import page
from tunelight.record import read_record, write_sweep_file
from tunelight.reporting.display import SweepView
from tunelight.reporting.words import best_line, counts, end_line, summary
from tunelight.results import SweepResults
from tunelight.results.sweep import front
from tunelight.settings import Settings


@pytest.fixture
def ahead(tmp_path: Path) -> SweepResults:
    """Return a sweep whose best report is that of a trial that failed afterwards."""
    written = Writer(tmp_path)
    written.trial(0.9, 0.4)
    written.trial(0.5, 0.1, state="ERROR", error=ERROR)
    written.trial(0.8, 0.6, state="STOPPED")
    return written.load()


def test_where_all_have_failed_there_is_no_best_and_the_error_names_the_one_to_look_at(tmp_path: Path) -> None:
    written = Writer(tmp_path)
    written.trial(0.4, state="OOM", error=ERROR)
    written.trial(0.1, state="ERROR", error=ERROR)
    found = written.load()
    assert "repeats" not in found.dataframe()
    assert found.repeated() == []
    with pytest.raises(NoResultError, match=r"each trial that reported 'loss' failed.*results\.trial\('00001'\)"):
        _ = found.best
    assert found.top(1) == []
    assert found.pareto() == []
    assert "Trial 00001, which failed, had reported loss=0.1" in found.summary()


def test_the_live_view_takes_the_best_back_when_its_trial_fails(sweep: Sweep, tmp_path: Path) -> None:
    first, second, third = (sweep.add(lr=number) for number in (1, 2, 3))
    for trial, loss in ((first, 0.5), (second, 0.1), (third, 0.3)):
        sweep.start(trial)
        sweep.report(trial, 1, loss)
    assert sweep.state.best is not None
    assert sweep.state.best.trial == "00001"
    sweep.fail(second, message="no")
    assert (sweep.state.best.trial, sweep.state.best.value) == ("00002", 0.3)
    assert best_line(sweep.state) == "best loss=0.3 by trial 00002 at epoch 1: lr=3 (0.1 by 00001, which failed)"
    line = end_line(sweep.state, sweep.state.trials["00001"], 3)
    assert "(best 0.3 by 00002; 0.1 by 00001, which failed)" in line
    assert "0.1 by 00001, which failed" in summary(sweep.state, sweep.clock())
    sweep.end()
    assert read_record(tmp_path).best == sweep.state.best


def test_the_report_s_headline_and_figures_count_no_failed_trial_as_best(ahead: SweepResults) -> None:
    shown = Page(page(ahead)).data
    best = shown["state"]["head"]["best"]
    assert (best["trial"], best["among"]) == (0, "lowest of all trials that did not fail")
    assert "Trial 1, which failed, had reported loss=0.1" in str(shown["part-about"])
    line = next(one for one in history(ahead).data if one.name == "best so far")
    assert list(line.y) == [0.4, 0.4, 0.4]
    assert any(one.name == "best: trial 0" for one in learning_curves(ahead).data)


def test_the_command_line_shows_and_exports_no_failed_trial(ahead: SweepResults, tmp_path: Path) -> None:
    assert "Trial 00001, which failed, had reported loss=0.1" in call("show", ahead.folder).output
    assert call("best", ahead.folder).output.startswith("Trial 00000: loss=0.4")
    assert "Trial 00001, which failed, had reported loss=0.1" in call("best", ahead.folder).output
    assert json.loads(call("best", ahead.folder, "--json").output)["trial"] == "00000"
    listed = json.loads(call("ls", ahead.folder.parent, "--json").output)
    assert listed[0]["best"]["trial"] == "00000"
    call("best", ahead.folder, "--export", tmp_path / "best.json")
    assert json.loads((tmp_path / "best.json").read_text())["trial"] == "00000"


@given(
    st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12),
    st.tuples(*[st.sampled_from(["min", "max"])] * 3),
)
def test_the_front_is_what_no_other_point_dominates(points: list[tuple[int, int, int]], modes: Any) -> None:
    signs = [-1 if mode == "max" else 1 for mode in modes]

    def dominates(one: Any, other: Any) -> bool:
        pairs = [(sign * a, sign * b) for sign, a, b in zip(signs, one, other, strict=True)]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    expected = [not any(dominates(other, one) for other in points) for one in points]
    assert front(points, modes) == expected


def test_table_report_and_command_line_show_each_metric(tmp_path: Path) -> None:
    """Of a sweep that was judged by loss and latency, recorded as tl.run records it."""
    write_sweep_file(tmp_path, {"metric": ["loss", "latency"], "mode": ["min", "max"]})
    sweep = Sweep(tmp_path, further=[["latency", "max"]])
    for reports in ([(0.5, 3.0), (0.25, 2.0)], [(0.75, 5.0), (0.8, 9.0)], [(0.9, 1.0)]):
        trial = sweep.run(x=1)
        for number, (loss, latency) in enumerate(reports, start=1):
            sweep.clock.now += 1
            sweep.report(trial, number, loss, latency=latency)
        sweep.end_by_itself(trial)
    sweep.end()
    two = tl.SweepResults.load(tmp_path)
    table = two.dataframe()
    assert list(table["best_loss"]) == [0.25, 0.75, 0.9]
    assert list(table["best_latency"]) == [2.0, 5.0, 1.0]  # of the same report
    assert list(table["last_latency"]) == [2.0, 9.0, 1.0]
    page_of_two = Page(page(two)).data
    assert ["more", "latency"] in [column["path"] for column in page_of_two["state"]["head"]["columns"]]
    assert [row["more"]["latency"] for row in page_of_two["state"]["rows"]] == [2.0, 5.0, 1.0]
    assert "On the Pareto front of loss (min) and latency (max): 0, 1" in str(page_of_two["part-about"])
    shown = call("show", str(two.folder)).output
    assert "latency" in next(line for line in shown.splitlines() if "reports" in line)
    assert "with latency=2" in call("best", str(two.folder)).output
    about = json.loads(call("show", str(two.folder), "--json").output)
    assert about["objectives"] == [["loss", "min"], ["latency", "max"]]
    assert about["pareto"] == ["00000", "00001"]
    assert two.objectives == (("loss", "min"), ("latency", "max"))
    assert [trial.id for trial in two.pareto("latency")] == ["00001"]
    with pytest.raises(SettingsError, match=r"not judged by 'latenci'\. Did you mean 'latency'\? It is by: loss, lat"):
        two.pareto("latenci")


def test_a_trial_without_one_of_the_metrics_is_not_on_their_front(tmp_path: Path) -> None:
    write_sweep_file(tmp_path, {"metric": ["loss", "acc"], "mode": ["min", "max"]})
    sweep = Sweep(tmp_path)
    reports: list[dict[str, Any]] = [{"acc": 0.9}, {}, {"acc": 1.0}, {"acc": 0.1}]
    for loss, more in zip((1.0, 0.25, float("nan"), 0.1), reports, strict=True):
        sweep.report(sweep.run(x=1), 1, loss, **more)
    sweep.run(x=1)
    sweep.end()
    assert [trial.id for trial in tl.SweepResults.load(tmp_path).pareto()] == ["00000", "00003"]


def test_the_live_table_and_the_last_line_hold_each_metric(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, further=[["latency", "max"]])
    trial = sweep.run(x=1)
    sweep.report(trial, 1, 0.5, latency=3.0)
    drawn_to = io.StringIO()
    console = Console(width=120, file=drawn_to)
    console.print(SweepView(sweep.state, [sweep.state.trials["00000"]], 1001.0, 1))
    drawn = drawn_to.getvalue()
    assert "latency" in next(line for line in drawn.splitlines() if "workers" in line and "epoch" in line)
    assert "best loss=0.5, latency=3 by trial 00000" in drawn


def test_what_is_recorded_names_the_further_metrics_where_there_are_any() -> None:
    settings = Settings(train=print, metric=["loss", "latency"], mode=["min", "max"])
    told = {"metric": "loss", "mode": "min"}
    assert settings.recorded == {**told, "further": [["latency", "max"]]}
    assert Settings(train=print, metric="loss").recorded == told


TWICE = {"repeats": 2, "top": 2}


def written(folder: Path, ended: str = "finished") -> Writer:
    """Write a sweep whose lucky first trial loses by the mean of two trainings."""
    sweep = Writer(folder, repeats=TWICE, num_samples=3)
    sweep.trial(0.9, 0.10)
    sweep.trial(0.8, 0.12)
    sweep.trial(0.9, 0.70)
    sweep.trial(0.9, 0.50, repeats="00000", repetition=1, config={"lr": 1.0})
    if ended == "finished":
        sweep.trial(0.9, 0.11, repeats="00001", repetition=1, config={"lr": 0.1})
    sweep.record.append("end", reason=ended)
    return sweep


@pytest.fixture
def twice(tmp_path: Path) -> SweepResults:
    return written(tmp_path).load()


def test_the_winner_has_the_best_mean_and_the_checkpoint_of_its_best_training(tmp_path: Path) -> None:
    sweep = written(tmp_path)
    sweep.checkpoint("00000", 2, 0.10)
    sweep.checkpoint("00001", 2, 0.12)
    there = sweep.checkpoint("00004", 2, 0.11)
    results = sweep.load()
    assert (results.best.id, results.best.value) == ("00004", 0.11)
    assert results.best_config == {"lr": 0.1}
    assert (results.best.repeats, results.best.repetition) == ("00001", 1)
    assert results.best.checkpoint == there


def test_the_last_line_of_a_sweep_the_page_and_show_go_by_the_mean(twice: SweepResults) -> None:
    state = read_record(twice.folder)
    assert "3 trials and 2 repetitions" in summary(state, 100.0)
    assert "Its configuration, that of trial 00001: 0.115 +- 0.0071 of 2 trainings" in summary(state, 100.0)
    assert best_line(state).startswith("best loss=0.11 by trial 00004")
    assert counts(state, 3).startswith("3/3 done, 2/2 repetitions")
    assert end_line(state, state.trials["00003"], 3).startswith("trial 00003 (repeats 00000) finished")
    shown = Page(page(twice)).data
    assert shown["state"]["head"]["best"]["among"] == "lowest of the configuration with the best mean"
    assert "trial 00001: 0.115 +- 0.0071 of 2 trainings" in str(shown["part-about"])
    assert "trial 00001: 0.115 +- 0.0071 of 2 trainings" in call("show", twice.folder).output
    about = json.loads(call("show", twice.folder, "--json").output)
    assert [one["trial"] for one in about["repeated"]] == ["00001", "00000"]
    assert about["best"]["trial"] == "00004"
    assert about["trials"][3]["repeats"] == "00000"


def test_repetitions_that_were_not_made_are_said_and_the_winner_is_of_those_that_were(tmp_path: Path) -> None:
    results = written(tmp_path, "time budget").load()
    assert "The repetitions are not complete (1 repetition not begun" in results.summary()
    assert [one.trial for one in results.repeated()] == ["00000"]


def test_where_all_repetitions_failed_that_is_said(tmp_path: Path) -> None:
    sweep = Writer(tmp_path, repeats={"repeats": 2, "top": 1})
    sweep.trial(0.9, 0.10)
    sweep.trial(0.9, repeats="00000", repetition=1, state="ERROR", error=ERROR)
    sweep.record.append("end", reason="finished")
    results = sweep.load()
    assert results.best.id == "00000"
    assert "0.1 of 1 training, a single result, for its repetitions failed" in results.summary()
    assert "not complete" not in results.summary()


def test_a_repetition_that_diverged_cannot_win(tmp_path: Path) -> None:
    sweep = Writer(tmp_path, repeats=TWICE)
    sweep.trial(0.9, 0.10)
    sweep.trial(0.9, 0.20)
    sweep.trial(0.05, repeats="00000", repetition=1, state="DIVERGED", error=ERROR)
    sweep.trial(0.30, repeats="00001", repetition=1)
    results = sweep.load()
    assert (results.best.id, [one.mean for one in results.repeated()]) == ("00001", [0.25, float("inf")])
    assert "inf of 2 trainings, training diverged" in results.summary()


def test_repetitions_are_no_trials_of_the_search_and_marked_in_the_table(twice: SweepResults) -> None:
    best, _ = twice.repeated()
    assert (best.trial, best.trials, best.values, best.n) == ("00001", ("00001", "00004"), (0.12, 0.11), 2)
    assert best.mean == pytest.approx(0.115)
    assert best.spread == pytest.approx(0.01 / 2**0.5)
    table = twice.dataframe()
    assert list(table["repetition"]) == [0, 0, 0, 1, 1]
    assert list(table["repeats"].dropna()) == ["00000", "00001"]
    assert [trial.id for trial in twice] == ["00000", "00001", "00002"]
    assert [trial.id for trial in twice.repetitions] == ["00003", "00004"]
    assert [trial.id for trial in twice.every_trial] == [f"{number:05d}" for number in range(5)]
    assert twice.trial("4").repeats == "00001"
    assert [trial.id for trial in twice.pareto()] == ["00000"]
    assert len(values_of(twice, "loss", "min")) == len(twice) == 3
    assert [trial.id for trial in twice.top(5)] == ["00004", "00000", "00002"]  # each by its best training
    assert "best: trial 1" in [trace.name for trace in twice.plot("learning_curves").data]
    earlier, _ = read_earlier([twice.folder], [("loss", "min")])
    assert [Path(one.name).name for one in earlier] == ["00000", "00001", "00002"]
    assert [trial.id for trial in twice.record.searched] == ["00000", "00001", "00002"]
    assert twice.record.best is not None
    assert twice.record.best.trial == "00000"
