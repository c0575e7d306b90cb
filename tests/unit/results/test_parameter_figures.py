"""Figures of how results depend on hyperparameters: each mark is a trial, and what is left out is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tests.unit.results.test_figures import points_of
from tunelight.errors import SettingsError
from tunelight.extras.figures import contour, importances, parallel, slices
from tunelight.extras.figures.data import columns, is_wide
from tunelight.record import write_sweep_file
from tunelight.results import SweepResults


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits", trials=24)


def test_a_line_of_parallel_coordinates_is_a_trial(results: SweepResults) -> None:
    (line,) = parallel(results).data
    found = {axis.label: axis for axis in line.dimensions}
    assert list(found) == ["model.hidden", "model.lr", "momentum", "opt", "loss"]
    assert line.customdata.tolist() == [trial.index for trial in results.trials]
    assert found["model.hidden"]["values"].tolist() == [trial.config["model"]["hidden"] for trial in results.trials]
    assert found["loss"]["values"] == pytest.approx([trial.value for trial in results.trials])
    below = found["momentum"].tickvals[0]
    assert found["momentum"].ticktext[0] == "(not set)"
    lacking = ["momentum" not in trial.config for trial in results.trials]
    assert (found["momentum"]["values"] == np.float32(below)).tolist() == lacking
    names = dict(zip(found["opt"].tickvals, found["opt"].ticktext, strict=True))
    assert [names[place] for place in found["opt"]["values"]] == [trial.config["opt"] for trial in results.trials]


def test_figures_of_keys_say_which_are_not_set_and_who_reported_nothing(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for number, value in enumerate([0.5, 0.4, 0.3, math.nan]):
        trial = sweep.add(x=number, **({"z": 0.1 * number} if number % 2 else {}))
        sweep.start(trial)
        sweep.report(trial, 1, value)
    sweep.callback.close()
    for draw in (parallel, slices):
        said = draw(SweepResults.load(tmp_path)).layout.title.text
        assert "not set: z in 2 of 3 trials; without 1 of 4 trials, which reported no number" in said


def test_slices_leave_out_who_lacks_the_key(results: SweepResults) -> None:
    made = slices(results)
    titles = [one.title.text for one in made.select_xaxes()]
    assert titles == ["model.hidden", "model.lr", "momentum", "opt"]
    drawn = dict(zip(titles, zip(made.data, points_of(made), strict=True), strict=True))
    assert len(drawn["model.lr"][1]) == len(results)
    for trace, indices in drawn.values():
        assert list(trace.y) == [results.trials[index].value for index in indices]
    assert list(drawn["opt"][0].x) == [results.trials[index].config["opt"] for index in drawn["opt"][1]]
    assert set(drawn["momentum"][1]) == {trial.index for trial in results.trials if "momentum" in trial.config}
    assert [one.type for one in made.select_xaxes()] == [None, "log", None, "category"]


def test_trials_that_were_stopped_or_failed_are_drawn_with_their_best_report(results: SweepResults) -> None:
    drawn = dict(zip(points_of(slices(results))[0], slices(results).data[0].y, strict=True))
    assert {results.trials[index].state for index in drawn} == {"FINISHED", "STOPPED", "ERROR", "DIVERGED"}
    assert drawn == {trial.index: trial.value for trial in results.trials}


def test_a_contour_is_of_the_keys_that_decide(tmp_path: Path) -> None:
    results = sphere(tmp_path)
    made = contour(results)
    assert (made.layout.xaxis.title.text, made.layout.yaxis.title.text) == ("x", "z")
    heat, points = made.data
    assert len(points.customdata) == 30  # which have z
    for x, y, (index, value) in zip(points.x, points.y, points.customdata, strict=True):
        trial = results.trials[index]
        assert (x, y, value) == (trial.config["x"], trial.config["z"], trial.value)
    assert heat.z.shape == (32, 32)
    assert "30 of 60 trials, by their best loss up to epoch 1" in made.layout.title.text


def test_a_contour_of_many_trials_stays_small(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tunelight.extras.figures.parameters._MOST_POINTS", 10)
    heat, points = contour(sphere(tmp_path)).data
    assert len(points.x) == 10
    assert max(heat.z.shape) <= 12


def test_one_key_makes_no_contour(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for number in range(5):
        trial = sweep.add(lr=0.1 * number, same=1)
        sweep.start(trial)
        sweep.report(trial, 1, float(number))
    sweep.callback.close()
    made = contour(SweepResults.load(tmp_path))
    assert made.layout.annotations[0].text == "No two keys differ within the same trials."
    assert len(slices(SweepResults.load(tmp_path)).data) == 1


def sphere(folder: Path) -> SweepResults:
    """Record trials whose loss is decided by x, and a little by z, which only those have that have kind=b."""
    sweep = Sweep(folder)
    for number in range(60):
        x, y, kind = (number * 37 % 60) / 60, (number * 17 % 60) / 60, "ab"[number % 2]
        z = (number * 23 % 60) / 60
        trial = sweep.add(x=x, y=y, kind=kind, **({"z": z} if kind == "b" else {}))
        sweep.start(trial)
        sweep.report(trial, 1, 10 * (x - 0.5) ** 2 + (z if kind == "b" else 0.0))
    sweep.callback.close()
    return SweepResults.load(folder)


@pytest.mark.parametrize("evaluator", ["pedanova", "fanova"])
def test_importances_name_the_key_that_decides(tmp_path: Path, evaluator: Any) -> None:
    bar = importances(sphere(tmp_path), evaluator=evaluator).data[0]
    found = dict(zip(bar.y, bar.x, strict=True))
    assert max(found, key=found.__getitem__) == "x"
    assert "z*" in found
    assert found["z*"] > found["y"]


def test_importances_of_another_evaluator_are_refused(results: SweepResults) -> None:
    with pytest.raises(
        SettingsError, match=r"no evaluator 'fanov'\. Did you mean 'fanova'\? There are: fanova, pedanova"
    ):
        importances(results, evaluator="fanov")  # type: ignore[arg-type]


def test_a_key_is_drawn_on_the_scale_that_it_was_searched_on(tmp_path: Path) -> None:
    space = {"model.lr": {"loguniform": [0.01, 0.1]}, "p": {"uniform": [0, 1]}, "nested": {"n": {"lograndint": [1, 9]}}}
    write_sweep_file(tmp_path, {"space": space})
    sweep = Sweep(tmp_path)
    for number, p in enumerate((0.001, 0.002, 0.004, 0.9)):
        trial = sweep.add(**{"model.lr": 0.01 * (number + 1), "p": p, "nested": {"n": number + 1}})
        sweep.start(trial)
        sweep.report(trial, 1, 1.0 + number)
    results = SweepResults.load(tmp_path)
    made = slices(results)
    assert [made.layout[name].type for name in ("xaxis", "xaxis2", "xaxis3")] == ["log", "log", None]
    assert is_wide([0.001, 0.002, 0.004, 0.9])  # whose values alone would ask for another scale
    found = {axis.label: axis for axis in parallel(results).data[0].dimensions}
    assert found["model.lr"]["values"] == pytest.approx(np.log10([0.01, 0.02, 0.03, 0.04]))
    assert found["p"]["values"] == pytest.approx([0.001, 0.002, 0.004, 0.9])
    sweep.callback.close()


def test_keys_that_are_the_same_everywhere_are_no_columns(results: SweepResults) -> None:
    found = {column.key: column for column in columns(results.trials)}
    assert list(found) == ["model.hidden", "model.lr", "momentum", "opt"]
    assert set(found["opt"].values) == {"adam", "sgd"}
    assert not found["momentum"].there.all()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_line_is_the_brightest(tmp_path: Path, mode: str) -> None:
    sweep = Sweep(tmp_path, mode=mode)
    for number in range(5):
        trial = sweep.add(x=number)
        sweep.start(trial)
        sweep.report(trial, 1, float(number))
    sweep.callback.close()
    (lines,) = parallel(SweepResults.load(tmp_path)).data
    assert lines.line.reversescale is (mode == "min")
    assert lines.line.color.tolist() == [0, 1, 2, 3, 4]


def test_many_points_are_drawn_by_webgl(results: SweepResults, monkeypatch: Any) -> None:
    monkeypatch.setattr("tunelight.extras.figures.data.GL_FROM", 50)
    made = slices(results)
    assert {one.type for one in made.data} == {"scattergl"}
    assert len(points_of(made)) == 4
