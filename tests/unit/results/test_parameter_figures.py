"""Figures of how results depend on hyperparameters: each mark is a trial, and what is left out is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.recording import Sweep
from tests.unit.results.test_figures import points_of
from tests.unit.sweeps import record
from tunelight.errors import SettingsError
from tunelight.record import write_sweep_file
from tunelight.results import SweepResults
from tunelight.results.figures import contour, importances, parallel, slices
from tunelight.results.figures.data import columns
from tunelight.results.figures.style import is_wide


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits", trials=24)


def heights(figure: Any) -> dict[str, dict[int, float]]:
    """Return how high on its axis each trial's line passes, from 0 to 1, by the names of the axes and the trials."""
    first = figure.data[0]
    if first.type == "parcoords":  # Optuna 4
        axes = {
            one.label: (np.array(one["values"]) - one.range[0]) / (np.ptp(one.range) or 1) for one in first.dimensions
        }
        return {name: dict(zip(map(int, first.customdata), axis, strict=True)) for name, axis in axes.items()}
    lines = [one for one in figure.data if one.mode == "lines"]
    names = figure.layout.xaxis.ticktext
    return {name: {one.customdata[0][0]: one.y[place] for one in lines} for place, name in enumerate(names)}


def test_a_line_of_parallel_coordinates_is_a_trial(results: SweepResults) -> None:
    made = parallel(results)
    found = heights(made)
    assert list(found) == ["loss", "model.hidden", "model.lr", "momentum", "opt"]
    if made.data[0].type == "parcoords":
        whole = [trial for trial in results.trials if "momentum" in trial.config]
        assert "only trials that have all keys" in made.layout.title.text
    else:
        whole = results.trials
        assert list(made.data[3].customdata[4]) == [3, "opt", results.trials[3].config["opt"]]
    assert found["model.hidden"] == {one.index: (one.config["model"]["hidden"] - 32) / 96 for one in whole}
    assert sorted(whole, key=lambda one: one.value or 0) == sorted(whole, key=lambda one: found["loss"][one.index])


def test_of_many_trials_some_are_lines_the_best_among_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tunelight.results.figures.parameters._MOST_LINES", 5)
    sweep = Sweep(tmp_path)
    for number in range(20):
        trial = sweep.add(x=number)
        sweep.start(trial)
        sweep.report(trial, 1, (number - 7) ** 2)
    sweep.callback.close()
    made = parallel(SweepResults.load(tmp_path))
    assert "5 of 20 trials, evenly by rank" in made.layout.title.text
    drawn = heights(made)["x"]
    assert len(drawn) == 5
    assert 7 in drawn


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
    monkeypatch.setattr("tunelight.results.figures.parameters._MOST_POINTS", 10)
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
    found = heights(parallel(results))
    assert list(found["model.lr"].values()) == pytest.approx(np.log(range(1, 5)) / np.log(4))
    assert list(found["p"].values()) == pytest.approx([0, 0.001 / 0.899, 0.003 / 0.899, 1])
    sweep.callback.close()


def test_keys_that_are_the_same_everywhere_are_no_columns(results: SweepResults) -> None:
    found = {column.key: column for column in columns(results.trials)}
    assert list(found) == ["model.hidden", "model.lr", "momentum", "opt"]
    assert set(found["opt"].values) == {"adam", "sgd"}
    assert not found["momentum"].there.all()


@pytest.mark.parametrize(("mode", "best"), [("min", 0), ("max", 4)])
def test_the_best_line_is_the_brightest(tmp_path: Path, mode: str, best: int) -> None:
    sweep = Sweep(tmp_path, mode=mode)
    for number in range(5):
        trial = sweep.add(x=number)
        sweep.start(trial)
        sweep.report(trial, 1, float(number))
    sweep.callback.close()
    first = parallel(SweepResults.load(tmp_path)).data
    if first[0].type == "parcoords":  # Optuna 4
        assert first[0].line.reversescale is (mode == "min")
    else:
        assert first[best].line.color == "rgb(253, 231, 37)"


def test_many_points_are_drawn_by_webgl(results: SweepResults, monkeypatch: Any) -> None:
    monkeypatch.setattr("tunelight.results.figures.style.GL_FROM", 50)
    made = slices(results)
    assert {one.type for one in made.data} == {"scattergl"}
    assert len(points_of(made)) == 4
