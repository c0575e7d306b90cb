"""A sweep as plain data: columns in order, rows that JSON can hold, the best, rungs and curves."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tunelight.extras.report.page import sweep_head
from tunelight.record import read_record, view
from tunelight.record.view import ColumnStats, Curve, plain


def test_results_come_first_then_hyperparameters_then_what_a_trial_took(tmp_path: Path) -> None:
    state = record(tmp_path).record
    found = view.columns(state, ColumnStats(state.trials.values()))
    assert [column.name for column in found] == [
        "trial", "state", "best loss", "model.lr", "model.hidden", "opt", "momentum",
        "last loss", "epochs", "time", "workers",
    ]  # fmt: skip
    row = view.row(state, state.trials["00000"])
    shown = {column.name: column.of(row) for column in found}
    config = state.trials["00000"].config
    assert shown["model.lr"] == config["model"]["lr"]
    assert shown["momentum"] == config.get("momentum")
    assert (shown["trial"], shown["state"], shown["epochs"]) == (0, "FINISHED", 16)


def test_a_hyperparameter_that_never_varies_comes_last_and_one_that_most_values_have_first(sweep: Sweep) -> None:
    for number in range(3):
        sweep.run(a=1, b=number % 2, c=number)
    seen = ColumnStats(sweep.state.trials.values())
    assert seen.keys == ["b", "c", "a"]
    assert seen.by_variety == ["c", "b", "a"]


def test_reasons_and_further_metrics_have_columns_where_trials_have_them(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, further=[["latency", "min"]])
    trial = sweep.run(lr=0.1)
    sweep.report(trial, 1, 0.5, latency=3.0, epoch=None)
    sweep.callback.record.append("state", trial="00000", state="PAUSED", why="place 2 of 2 at rung 1")
    state = read_record(tmp_path)
    found = view.columns(state, ColumnStats(state.trials.values()))
    row = view.row(state, state.trials["00000"])
    assert {column.name: column.of(row) for column in found[3:]} == {
        "latency": 3.0, "lr": 0.1, "last loss": 0.5, "reports": 1, "time": row["seconds"], "workers": 2,
        "why": "place 2 of 2 at rung 1",
    }  # fmt: skip


def test_values_are_cut_and_no_row_holds_what_json_cannot(sweep: Sweep) -> None:
    sweep.run(float("nan"), text="x" * 1_000_000, big=1 << 70, odd=float("inf"), deep={"a": [1, 2]})
    row = view.row(sweep.state, sweep.state.trials["00000"])
    assert len(json.dumps(row, allow_nan=False)) < 1000
    assert row["last"] == "nan"
    assert row["config"]["odd"] == "inf"
    assert row["config"]["deep.a"] == "[1, 2]"
    assert (plain(0.5), plain(None), plain(True), len(plain("y" * 300))) == (0.5, None, True, 160)


def test_the_head_has_the_best_configuration_with_its_report_and_counts_rungs(tmp_path: Path) -> None:
    state = record(tmp_path).record
    head = sweep_head(state, ColumnStats(state.trials.values()), "digits", "finished", state.updated, space={})
    best = head["best"]
    trial = state.trials[f"{best['trial']:05d}"]
    assert best["value"] == trial.value == min(one.value for one in state.from_scratch if one.value and not one.failed)
    assert dict(best["config"])["model.lr"] == trial.config["model"]["lr"]
    assert dict(best["report"])["loss"] == trial.value
    assert best["when"] == "epoch 16 (report 16)"
    assert head["counts"] == {"FINISHED": 2, "STOPPED": 6, "DIVERGED": 2, "ERROR": 2}
    assert [(rung["at"], rung["reached"], rung["passed"]) for rung in head["rungs"]] == [
        (1, 12, 12), (4, 12, 4), (16, 2, 0),
    ]  # fmt: skip
    json.dumps(head, allow_nan=False)


def test_a_curve_has_at_most_its_points_and_always_the_last_without_what_is_no_number() -> None:
    curve = Curve()
    for number in range(1, 5001):
        curve.add({"epoch": number - 1}, number / 2)
        xs, ys = curve.points()
        assert len(xs) == len(ys) <= 130
        assert (xs[-1], ys[-1]) == (number, number / 2)
        assert xs[0] == 1
    steps = {b - a for a, b in pairwise(xs[:-1])}
    assert steps == {64}
    reports = [{"training_iteration": n, "loss": value} for n, value in enumerate((1.0, None, float("inf"), 0.5), 1)]
    assert view.curve_of(reports, "loss").points() == ([1.0, 4.0], [1.0, 0.5])
