"""Figures of recorded sweeps: what they hold, also of a sweep that has next to nothing."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.recording import Sweep
from tests.kit.sweeps import record
from tunelight.errors import MetricError, ReportError, SettingsError
from tunelight.extras.figures import FIGURES, history, importances, learning_curves, slices
from tunelight.extras.figures.data import is_wide, same_epoch
from tunelight.record import write_sweep_file
from tunelight.reporting import write_image
from tunelight.results import SweepResults


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return record(tmp_path_factory.mktemp("sweeps") / "digits", trials=24)


def trace(figure: Any, name: str) -> Any:
    return next(one for one in figure.data if (one.name or "").startswith(name))


def hardly_anything(sweep: Sweep) -> Iterator[None]:
    """Pause where a sweep has nobody, one that waits, NaN alone, one report, two alike, and values of all kinds."""
    yield
    sweep.add(lr=0.1)
    sweep.step()
    yield
    sweep.run(math.nan, math.inf, lr=0.1)
    yield
    sweep.run(0.5, lr=0.1)
    yield
    for _ in range(2):
        trial = sweep.run(lr=0.1, nested={"a": [1, 2]})
        sweep.report(trial, 1, 0.5, epoch=None)
    yield
    odd: list[Any] = [None, True, 3, 0.5, "x", [1], {"deep": 1}, 10**400, math.nan]
    for number, value in enumerate(odd):  # one key is a number in some and text in others
        sweep.run(float(number), odd=value, **({"sometimes": number / 10} if number % 2 else {}))
    yield


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_draws_also_what_is_hardly_there(sweep: Sweep, tmp_path: Path, name: str) -> None:
    for _ in hardly_anything(sweep):
        made = FIGURES[name](SweepResults.load(tmp_path))
        json.loads(made.to_json(), parse_constant=pytest.fail)  # as strict as a browser: there is no NaN
        assert made.data or made.layout.annotations[0].text


def test_history_draws_every_trial_and_the_best_so_far(results: SweepResults, tmp_path: Path) -> None:
    made = history(results)
    drawn = {int(x): y for one in made.data if one.mode == "markers" for x, y in zip(one.x, one.y, strict=True)}
    assert drawn == {trial.index: trial.value for trial in results.trials}
    best = trace(made, "best so far")
    assert list(best.y) == list(np.minimum.accumulate([drawn[index] for index in sorted(drawn)]))
    sweep = Sweep(tmp_path, mode="max")
    for value in (0.5, 0.25, 0.75):
        sweep.run(value)
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


def test_many_points_are_thinned_but_keep_best_and_last(results: SweepResults, monkeypatch: Any) -> None:
    from tunelight.extras import figures

    monkeypatch.setattr(figures, "_MOST_POINTS", 20)
    made = learning_curves(results)
    group = made.data[1]
    whole = results.trials[int(group.customdata[0])].history
    end = int(np.flatnonzero(np.isnan(group.y))[0])
    assert end < len(whole)
    assert group.y[end - 1] == pytest.approx(whole[-1]["loss"])
    assert min(group.y[:end]) == pytest.approx(min(one["loss"] for one in whole))
    assert "th of" in made.layout.title.text


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


def test_a_picture_without_kaleido_says_what_to_install(results, tmp_path, monkeypatch):
    find = importlib.util.find_spec  # others import by it, too
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "kaleido" else find(name))
    with pytest.raises(ReportError, match=r"kaleido is not installed.*pip install 'tunelight\[png\]'"):
        write_image(history(results), tmp_path / "a.png")


def test_an_unknown_kind_of_picture_metric_or_evaluator_is_guessed_at(results: SweepResults, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"has '.pgn'. Did you mean 'png'\?"):
        write_image(history(results), tmp_path / "a.pgn")
    with pytest.raises(MetricError, match=r"'los'\. Did you mean 'loss'\? Reported were: loss, seconds_an_epoch"):
        history(results, metric="los")
    with pytest.raises(SettingsError, match=r"'fanov'\. Did you mean 'fanova'\? There are: fanova, pedanova"):
        importances(results, evaluator="fanov")  # type: ignore[arg-type]


def test_slices_leave_out_who_lacks_the_key(results: SweepResults) -> None:
    made = slices(results)
    titles = [one.title.text for one in made.select_xaxes()]
    assert titles == ["model.hidden", "model.lr", "momentum", "opt"]
    clicked = [[*map(int, one.customdata)] for one in made.data]  # the trials that a click finds
    drawn = dict(zip(titles, zip(made.data, clicked, strict=True), strict=True))
    assert len(drawn["model.lr"][1]) == len(results)
    for trace, indices in drawn.values():
        assert list(trace.y) == [results.trials[index].value for index in indices]
    assert list(drawn["opt"][0].x) == [results.trials[index].config["opt"] for index in drawn["opt"][1]]
    assert set(drawn["momentum"][1]) == {trial.index for trial in results.trials if "momentum" in trial.config}
    assert [one.type for one in made.select_xaxes()] == [None, "log", None, "category"]


def test_a_key_is_drawn_on_the_scale_that_it_was_searched_on(sweep: Sweep, tmp_path: Path) -> None:
    space = {"model.lr": {"loguniform": [0.01, 0.1]}, "p": {"uniform": [0, 1]}, "nested": {"n": {"lograndint": [1, 9]}}}
    write_sweep_file(tmp_path, {"space": space})
    for number, p in enumerate((0.001, 0.002, 0.004, 0.9)):
        sweep.run(1.0 + number, **{"model.lr": 0.01 * (number + 1), "p": p, "nested": {"n": number + 1}})
    results = SweepResults.load(tmp_path)
    made = slices(results)
    assert [made.layout[name].type for name in ("xaxis", "xaxis2", "xaxis3")] == ["log", "log", None]
    assert is_wide([0.001, 0.002, 0.004, 0.9])  # whose values alone would ask for another scale


RUNGS = (1, 3, 9, 27)


def searched(folder: Path, trials: int, seed: int, stop: bool = True) -> SweepResults:
    """Record a sweep under ASHA whose loss is decided by lr, a little by hidden, and not at all by dead and none.

    A loss falls by 10 from the first epoch to the last, ten times what lr makes of it.
    """
    chance = random.Random(seed)
    seen: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    sweep = Sweep(folder)
    for _ in range(trials):
        config = {"lr": 10 ** chance.uniform(-5, -1), "hidden": chance.choice([16, 32, 64, 128])}
        dead = {"dead": chance.uniform(0, 1), "none": chance.uniform(0, 1)}
        trial = sweep.run(**config, **dead)
        end = 3 * (math.log10(config["lr"]) + 3) ** 2 / 4 - 0.3 * math.log2(config["hidden"])
        for epoch in range(1, RUNGS[-1] + 1):
            loss = end + 10 * math.exp(-epoch / 8) + chance.gauss(0, 0.02)
            sweep.report(trial, epoch, loss)
            if epoch in RUNGS:
                seen[epoch].append(loss)
                if stop and loss > np.quantile(seen[epoch], 1 / 3):
                    break
        sweep.end_by_itself(trial)
    sweep.end()
    return SweepResults.load(folder)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_key_without_effect_is_given_next_to_nothing_under_asha(tmp_path: Path, seed: int) -> None:
    bar = importances(searched(tmp_path, 70, seed)).data[0]
    shares = {key: value / sum(bar.x) for key, value in zip(bar.y, bar.x, strict=True)}
    assert max(shares, key=shares.__getitem__) == "lr"
    assert shares["lr"] > 0.6
    assert shares["dead"] + shares["none"] < 0.15


def test_the_figure_says_how_many_trials_it_rests_on_and_at_which_epoch(tmp_path, monkeypatch):
    made = importances(searched(tmp_path, 110, 0))
    assert "by fANOVA" in made.layout.title.text
    assert "110 of 110 trials, by their best loss up to epoch 1" in made.layout.title.text
    assert all(said.endswith("of 110 trials") for said in made.data[0].hovertext)
    assert "rough" not in made.layout.title.text
    monkeypatch.setattr("tunelight.extras.figures.MOST", 40)
    some = importances(SweepResults.load(tmp_path))
    assert "40 of 110 trials" in some.layout.title.text
    assert "rough: with fewer than 100 trials, chance has its share" in some.layout.title.text
    assert all(said.endswith("of 40 trials") for said in some.data[0].hovertext)


def test_trials_are_compared_at_the_last_epoch_that_most_came_to(sweep: Sweep, tmp_path: Path) -> None:
    for length in (9, 9, 3, 1):
        trial = sweep.run(x=length)
        for epoch in range(1, length + 1):
            sweep.report(trial, epoch, 1 / epoch if epoch != 3 else math.nan)
    sweep.end()
    results = SweepResults.load(tmp_path)
    epoch, values = same_epoch(results, "loss", "min")
    assert epoch == 2  # the third's last number
    assert values.tolist()[:3] == [0.5, 0.5, 0.5]
    assert math.isnan(values[3])


def test_without_scikit_learn_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as where it is not installed
    results = searched(tmp_path, 20, 0)
    made = importances(results)
    assert not made.data
    assert "pip install scikit-learn" in made.layout.annotations[0].text
    assert importances(results, evaluator="pedanova").data


def test_values_that_span_decades_are_drawn_on_a_log_axis(sweep: Sweep, tmp_path: Path) -> None:
    for best in (1e-3, 1e-2, 1.0):
        sweep.run(5.0, best)
    results = SweepResults.load(tmp_path)
    for made in (history(results), learning_curves(results)):
        assert (made.layout.yaxis.type, made.layout.yaxis.dtick) == ("log", 1)
