"""results.pareto(): the trials that no other beats in every metric."""

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
from tests.kit.recording import Sweep
from tests.unit.cli.test_command import call
from tests.unit.reporting.test_report import inlined
from tunelight.errors import SettingsError
from tunelight.extras.report.page import page
from tunelight.record import write_sweep_file
from tunelight.reporting.display import SweepView
from tunelight.results.sweep import front
from tunelight.settings import Settings

POINTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)


@given(POINTS, st.tuples(*[st.sampled_from(["min", "max"])] * 3))
def test_the_front_is_what_no_other_point_dominates(points: list[tuple[int, int, int]], modes: Any) -> None:
    signs = [-1 if mode == "max" else 1 for mode in modes]

    def dominates(one: Any, other: Any) -> bool:
        pairs = [(sign * a, sign * b) for sign, a, b in zip(signs, one, other, strict=True)]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    expected = [not any(dominates(other, one) for other in points) for one in points]
    assert front(points, modes) == expected


@pytest.fixture
def results(tmp_path: Path) -> tl.SweepResults:
    write_sweep_file(tmp_path, {"metric": ["loss", "acc"], "mode": ["min", "max"]})
    sweep = Sweep(tmp_path)
    reports: list[list[tuple[Any, Any]]] = [
        [(1.0, 0.9)], [(0.5, 0.5), (0.75, 1.0)], [(0.75, 0.4)], [(0.25, None)], [(float("nan"), 1.0)], [], [(0.1, 0.1)],
    ]  # fmt: skip
    for curve in reports:
        trial = sweep.run(x=1)
        for number, (loss, acc) in enumerate(curve, start=1):
            sweep.report(trial, number, loss, **({} if acc is None else {"acc": acc}))
        sweep.end_by_itself(trial)
    sweep.end()
    return tl.SweepResults.load(tmp_path)


def test_trials_count_with_their_best_report_by_the_first_metric(results):
    assert results.objectives == (("loss", "min"), ("acc", "max"))
    assert [trial.id for trial in results.pareto()] == ["00000", "00001", "00006"]
    assert [trial.id for trial in results.pareto("acc")] == ["00000"]
    assert (results.metric, results.mode, results.best.id) == ("loss", "min", "00006")


def test_a_metric_that_is_none_of_the_sweeps_is_named(results):
    with pytest.raises(SettingsError, match=r"not judged by 'acd'\. Did you mean 'acc'\? It is by: loss, acc"):
        results.pareto("acd")


def test_a_sweep_with_one_metric_has_a_front_of_the_best(sweep, tmp_path):
    for loss in (0.5, 0.25):
        sweep.run(loss, x=1)
    sweep.end()
    assert [trial.id for trial in tl.SweepResults.load(tmp_path).pareto()] == ["00001"]
    assert tl.SweepResults.load(tmp_path).pareto("loss")


# Several metrics wherever a sweep is shown


@pytest.fixture
def two(tmp_path: Path) -> tl.SweepResults:
    """Return a sweep that was judged by loss and latency, recorded as tl.run records it."""
    folder = tmp_path / "two"
    folder.mkdir()
    write_sweep_file(folder, {"metric": ["loss", "latency"], "mode": ["min", "max"]})
    sweep = Sweep(folder, further=[["latency", "max"]])
    for reports in ([(0.5, 3.0), (0.25, 2.0)], [(0.75, 5.0), (0.8, 9.0)], [(0.9, 1.0)]):
        trial = sweep.run(x=1)
        for number, (loss, latency) in enumerate(reports, start=1):
            sweep.clock.now += 1
            sweep.report(trial, number, loss, latency=latency)
        sweep.end_by_itself(trial)
    sweep.end()
    return tl.SweepResults.load(folder)


def test_the_table_holds_each_metric(two: tl.SweepResults) -> None:
    table = two.dataframe()
    assert list(table["best_loss"]) == [0.25, 0.75, 0.9]
    assert list(table["best_latency"]) == [2.0, 5.0, 1.0]  # of the same report
    assert list(table["last_latency"]) == [2.0, 9.0, 1.0]


def test_the_summary_holds_each_metric_and_the_front(two: tl.SweepResults) -> None:
    said = two.summary()
    assert "Best loss: 0.25, with latency=2 (trial 00000 at epoch 2)" in said
    assert "On the Pareto front of loss (min) and latency (max): 00000, 00001" in said


def test_the_report_holds_each_metric(two: tl.SweepResults) -> None:
    shown = inlined(page(two))
    assert ["more", "latency"] in [column["path"] for column in shown["state"]["head"]["columns"]]
    assert [row["more"]["latency"] for row in shown["state"]["rows"]] == [2.0, 5.0, 1.0]
    assert "On the Pareto front of loss (min) and latency (max): 0, 1" in str(shown["part-about"])


def test_the_command_line_shows_each_metric(two: tl.SweepResults) -> None:
    shown = call("show", str(two.folder)).output
    assert "latency" in next(line for line in shown.splitlines() if "reports" in line)
    assert "with latency=2" in call("best", str(two.folder)).output
    about = json.loads(call("show", str(two.folder), "--json").output)
    assert about["objectives"] == [["loss", "min"], ["latency", "max"]]
    assert about["pareto"] == ["00000", "00001"]


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
