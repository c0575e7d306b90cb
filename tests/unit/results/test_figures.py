"""Figures of recorded sweeps: what they hold, and that each also draws a sweep that has next to nothing."""

from __future__ import annotations

import importlib.util
import json
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tunelight.errors import MetricError, ReportError
from tunelight.extras.figures import FIGURES, history, learning_curves, pareto
from tunelight.extras.figures.data import is_wide
from tunelight.reporting import write_image
from tunelight.results import SweepResults


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits", trials=24)


def trace(figure: Any, name: str) -> Any:
    return next(one for one in figure.data if (one.name or "").startswith(name))


def loads(figure: Any) -> dict[str, Any]:
    """Read a figure as a browser would: strict JSON."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    found: dict[str, Any] = json.loads(figure.to_json(), parse_constant=refuse)
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_has_a_title_and_is_json_that_a_browser_reads(results: SweepResults, name: str) -> None:
    made = FIGURES[name](results)
    assert made.layout.title.text
    assert loads(made)["data"]


def nobody(sweep: Sweep) -> None:
    """Leave the sweep without a trial."""


def one_that_waits(sweep: Sweep) -> None:
    sweep.add(lr=0.1)
    sweep.step()


def one_of_nan(sweep: Sweep) -> None:
    trial = sweep.add(lr=0.1)
    sweep.start(trial)
    sweep.report(trial, 1, math.nan)
    sweep.report(trial, 2, math.inf)


def one_report(sweep: Sweep) -> None:
    trial = sweep.add(lr=0.1)
    sweep.start(trial)
    sweep.clock.now += 1
    sweep.report(trial, 1, 0.5)


def two_alike(sweep: Sweep) -> None:
    for _ in range(2):
        trial = sweep.add(lr=0.1, nested={"a": [1, 2]})
        sweep.start(trial)
        sweep.report(trial, 1, 0.5, epoch=None)


def odd_values(sweep: Sweep) -> None:
    """Configurations of all kinds, none alike; one key is a number in some and text in others."""
    odd: list[Any] = [None, True, 3, 0.5, "x", [1], {"deep": 1}, 10**400, math.nan]
    for number, value in enumerate(odd):
        trial = sweep.add(odd=value, **({"sometimes": number / 10} if number % 2 else {}))
        sweep.start(trial)
        sweep.clock.now += 1
        sweep.report(trial, 1, float(number))


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("make", [nobody, one_that_waits, one_of_nan, one_report, two_alike, odd_values])
def test_each_figure_draws_also_what_is_hardly_there(tmp_path: Path, name: str, make: Any) -> None:
    sweep = Sweep(tmp_path)
    make(sweep)
    made = FIGURES[name](SweepResults.load(tmp_path))
    loads(made)
    assert made.data or made.layout.annotations[0].text
    sweep.callback.close()


def test_history_draws_every_trial_and_the_best_so_far(results: SweepResults) -> None:
    made = history(results)
    drawn = {int(x): y for one in made.data if one.mode == "markers" for x, y in zip(one.x, one.y, strict=True)}
    assert drawn == {trial.index: trial.value for trial in results.trials}
    best = trace(made, "best so far")
    assert list(best.y) == list(np.minimum.accumulate([drawn[index] for index in sorted(drawn)]))


def test_history_says_how_many_have_no_value(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    one_report(sweep)
    one_of_nan(sweep)
    assert "without 1 of 2 trials, which reported no number" in history(SweepResults.load(tmp_path)).layout.title.text
    sweep.callback.close()


def test_history_of_what_is_to_be_large_rises(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, mode="max")
    for value in (0.5, 0.25, 0.75):
        trial = sweep.add()
        sweep.start(trial)
        sweep.report(trial, 1, value)
    assert list(trace(history(SweepResults.load(tmp_path)), "best so far").y) == [0.5, 0.5, 0.75]
    sweep.callback.close()


def test_learning_curves_are_grouped_by_rung_with_gaps_between_trials(results: SweepResults) -> None:
    made = learning_curves(results)
    names = [one.name for one in made.data]
    assert names[:2] == [
        "highest rung reached: 2 of 3 (epoch 4): 20 trials",
        "highest rung reached: 3 of 3 (epoch 16): 4 trials",
    ]
    group = made.data[1]
    ends = np.flatnonzero(np.isnan(group.y))
    assert len(ends) == 4
    first = int(group.customdata[0])
    assert list(group.y[: ends[0]]) == pytest.approx([one["loss"] for one in results.trials[first].history])
    assert set(group.customdata[: ends[0] + 1]) == {first}


def test_learning_curves_are_grouped_by_state_where_no_rung_is_known(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    one_report(sweep)
    assert learning_curves(SweepResults.load(tmp_path)).data[0].name == "running: 1 trial"
    sweep.callback.close()


def test_many_points_are_thinned_but_keep_best_and_last(results: SweepResults, monkeypatch: Any) -> None:
    from tunelight.extras.figures import curves

    monkeypatch.setattr(curves, "_MOST_POINTS", 20)
    made = learning_curves(results)
    group = made.data[1]
    whole = results.trials[int(group.customdata[0])].history
    end = int(np.flatnonzero(np.isnan(group.y))[0])
    assert end < len(whole)
    assert group.y[end - 1] == pytest.approx(whole[-1]["loss"])
    assert min(group.y[:end]) == pytest.approx(min(one["loss"] for one in whole))
    assert "th of" in made.layout.title.text


def test_an_unknown_metric_is_guessed_at(results: SweepResults) -> None:
    with pytest.raises(MetricError, match=r"'los'\. Did you mean 'loss'\? Reported were: loss, seconds_an_epoch"):
        history(results, metric="los")


def points_of(figure: Any) -> list[tuple[int, ...]]:
    """Return the trials of each trace, as a click on its points finds them."""
    drawn = [one.customdata for one in figure.data if one.customdata is not None]
    return [tuple(int(row[0] if isinstance(row, list | tuple) else row) for row in rows) for rows in drawn]


@pytest.mark.parametrize("name", ["history", "learning_curves", "parallel", "slices", "contour", "pareto"])
def test_a_mark_names_its_trial_by_the_index(results: SweepResults, name: str) -> None:
    found = points_of(FIGURES[name](results))
    assert found
    assert {index for trace in found for index in trace} <= {trial.index for trial in results.trials}


def test_a_pareto_front_of_one_metric_is_against_the_time_it_took(results: SweepResults) -> None:
    made = pareto(results)
    assert made.layout.xaxis.title.text == "loss"
    assert made.layout.yaxis.title.text == "seconds of training"
    front = trace(made, "front")
    best = min(trial.value for trial in results.trials if trial.value is not None)
    assert best in list(front.x)


def test_a_pareto_front_of_two_metrics_takes_two(results: SweepResults) -> None:
    made = pareto(results, ["loss", "seconds_an_epoch"], ["min", "max"])
    assert "seconds_an_epoch (max)" in made.layout.title.text
    with pytest.raises(MetricError, match="Name two of each"):
        pareto(results, ["loss", "seconds_an_epoch", "loss"])


def test_the_front_is_that_of_the_results(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for number, (loss, speed) in enumerate([(1, 1), (2, 3), (2, 3), (3, 2), (0, 5), (4, 4), (math.nan, 9)]):
        trial = sweep.add(lr=number)
        sweep.start(trial)
        sweep.report(trial, 1, loss, speed=speed)
        if number == 4:
            sweep.fail(trial)
    sweep.callback.close()
    told = {"metric": ["loss", "speed"], "mode": ["min", "max"]}
    results = SweepResults(tmp_path, SweepResults.load(tmp_path).record, told)
    made = pareto(results)
    front, failed = trace(made, "front"), trace(made, "failed")
    assert list(front.customdata) == [trial.index for trial in results.pareto()] == [0, 1, 2, 5]
    assert list(failed.customdata) == [4]
    assert list(trace(made, "others").customdata) == [3]
    assert [one.name for one in made.data] == ["failed: 1 trial", "others: 1 trial", "front: 4 trials"]


# Values and pictures


@pytest.mark.parametrize(
    ("values", "wide"),
    [
        (np.linspace(0.001, 1.0, 200), False),
        (np.geomspace(1e-4, 1e-1, 200), True),
        (np.geomspace(1, 10, 200), False),
        (np.array([32.0, 64.0, 128.0]), False),
        (np.linspace(-1, 1, 200), False),
        (np.array([math.nan, math.inf]), False),
        (np.array([0.5]), False),
        (np.array([1e-4, 1.0]), True),
        (np.array([0.01, 9.0, 9.5, 10.0]), True),
    ],
)
def test_an_axis_is_logarithmic_only_for_what_is_far_apart(values: Any, wide: bool) -> None:
    assert is_wide(values) is wide


def test_values_that_span_decades_are_drawn_on_a_log_axis(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for best in (1e-3, 1e-2, 1.0):
        trial = sweep.add()
        sweep.start(trial)
        for number, value in enumerate([5.0, best], start=1):
            sweep.report(trial, number, value)
    results = SweepResults.load(tmp_path)
    for made in (history(results), learning_curves(results)):
        assert (made.layout.yaxis.type, made.layout.yaxis.dtick) == ("log", 1)
    sweep.report(trial, 3, 0.0)
    assert learning_curves(SweepResults.load(tmp_path)).layout.yaxis.type == "linear"
    sweep.callback.close()


@pytest.mark.parametrize(
    ("by", "epoch", "said"),
    [
        ("training_iteration", True, "epoch 2"),
        ("training_iteration", False, "report 2"),
        ("samples", True, "samples 2"),
    ],
)
def test_a_rung_is_named_with_its_place_and_the_number_of_trials(
    tmp_path: Path, by: str, epoch: bool, said: str
) -> None:
    sweep = Sweep(tmp_path, rungs={"by": by, "at": [2, 4]})
    for reports in (1, 2, 3):
        trial = sweep.add()
        sweep.start(trial)
        for number in range(1, reports + 1):
            sweep.report(trial, number, 1.0, samples=number, epoch=number - 1 if epoch else None)
    names = [one.name for one in learning_curves(SweepResults.load(tmp_path)).data]
    assert names[:2] == ["reached no rung: 1 trial", f"highest rung reached: 1 of 2 ({said}): 2 trials"]
    sweep.callback.close()


def test_a_picture_without_kaleido_says_what_to_install(
    results: SweepResults, tmp_path: Path, monkeypatch: Any
) -> None:
    find = importlib.util.find_spec  # others import by it, too
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "kaleido" else find(name))
    with pytest.raises(ReportError, match=r"kaleido is not installed.*pip install 'tunelight\[png\]'"):
        write_image(history(results), tmp_path / "a.png")


def test_a_browser_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    from tunelight.extras.report import page

    over = threading.Event()
    stuck = SimpleNamespace(write_image=lambda *_, **__: over.wait(30), layout=SimpleNamespace(height=None))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(page, "_LIMIT_S", 0.05)
    with pytest.raises(ReportError, match="did not answer within 0 s"):
        write_image(stuck, tmp_path / "a.png")
    over.set()


def test_a_picture_of_an_unknown_kind_is_guessed_at(results: SweepResults, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"has '.pgn'. Did you mean 'png'\?"):
        write_image(history(results), tmp_path / "a.pgn")
