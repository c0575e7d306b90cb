"""Importances: which evaluator is taken, at which epoch trials are compared, and what a key without effect is given."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.recording import Sweep
from tunelight.extras.figures import importances
from tunelight.extras.figures.data import same_epoch
from tunelight.results import SweepResults

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
        trial = sweep.add(**config, **dead)
        sweep.start(trial)
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


def found(figure: Any) -> dict[str, float]:
    bar = figure.data[0]
    whole = sum(bar.x)
    return {key: value / whole for key, value in zip(bar.y, bar.x, strict=True)}


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_key_without_effect_is_given_next_to_nothing_under_asha(tmp_path: Path, seed: int) -> None:
    shares = found(importances(searched(tmp_path, 70, seed)))
    assert max(shares, key=shares.__getitem__) == "lr"
    assert shares["lr"] > 0.6
    assert shares["dead"] + shares["none"] < 0.15


def test_the_figure_says_how_many_trials_it_rests_on_and_at_which_epoch(tmp_path: Path) -> None:
    made = importances(searched(tmp_path, 110, 0))
    assert "by fANOVA" in made.layout.title.text
    assert "110 of 110 trials, by their best loss up to epoch 1" in made.layout.title.text
    assert all(said.endswith("of 110 trials") for said in made.data[0].hovertext)
    assert "rough" not in made.layout.title.text


def test_few_trials_are_called_rough(tmp_path: Path) -> None:
    made = importances(searched(tmp_path, 20, 0))
    assert "rough: with fewer than 100 trials, chance has its share" in made.layout.title.text


def test_trials_are_compared_at_the_last_epoch_that_most_came_to(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for length in (9, 9, 3, 1):
        trial = sweep.add(x=length)
        sweep.start(trial)
        for epoch in range(1, length + 1):
            sweep.report(trial, epoch, 1 / epoch if epoch != 3 else math.nan)
    sweep.end()
    results = SweepResults.load(tmp_path)
    epoch, values = same_epoch(results, "loss", "min")
    assert epoch == 2  # the third's last number
    assert values.tolist()[:3] == [0.5, 0.5, 0.5]
    assert math.isnan(values[3])


def test_trials_that_all_came_to_the_end_are_compared_there(tmp_path: Path) -> None:
    results = searched(tmp_path, 6, 0, stop=False)
    epoch, values = same_epoch(results, "loss", "min")
    assert epoch == RUNGS[-1]
    assert values.tolist() == [trial.value for trial in results.trials]


def test_without_scikit_learn_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as where it is not installed
    results = searched(tmp_path, 20, 0)
    made = importances(results)
    assert not made.data
    assert "pip install scikit-learn" in made.layout.annotations[0].text
    assert importances(results, evaluator="pedanova").data


def test_of_very_many_trials_some_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunelight.extras.figures.parameters.MOST", 40)
    made = importances(searched(tmp_path, 70, 0))
    assert "40 of 70 trials" in made.layout.title.text
    assert all(said.endswith("of 40 trials") for said in made.data[0].hovertext)


def test_nothing_reported_says_so(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.add(x=1)
    sweep.step()
    sweep.end()
    assert "No trial has reported" in importances(SweepResults.load(tmp_path)).layout.annotations[0].text
