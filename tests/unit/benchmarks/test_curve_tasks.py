"""The training tasks whose learning curves are recorded."""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunelight as tl

PEERS = str(Path(__file__).parents[3] / "benchmarks" / "peers")
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(PEERS)
    curve_tasks: Any = importlib.import_module("curve_tasks")
TASKS = curve_tasks.TASKS
HERE = [name for name in TASKS if name != "mnist1d-cnn" or importlib.util.find_spec("mnist1d")]


def draw(task: Any, seed: int = 0) -> dict[str, Any]:
    return tl.SearchSpace(task.space).sample(np.random.RandomState(seed))


@pytest.mark.parametrize("name", HERE)
def test_a_training_is_determined_by_its_configuration_and_seed(name: str):
    task = TASKS[name]
    config = {**draw(task), "lr": 0.001}

    def two(config: dict[str, Any], seed: int) -> list[dict[str, float]]:
        training = task.start(config, seed)
        return [training.epoch(), training.epoch()]

    first = two(config, 0)
    assert all(math.isfinite(value) for report in first for value in report.values())
    assert two(config, 0) == first
    assert two(config, 1) != first
    for key in task.without_effect:
        for value in task.space[key]["choice"]:
            assert two({**config, key: value}, 0) == first


def test_nothing_but_nan_follows_a_divergence():
    config = {**draw(TASKS["diabetes-mlp"]), "lr": 1e20, "optimizer": "sgd", "activation": "relu"}
    training = TASKS["diabetes-mlp"].start(config, 0)
    assert all(math.isnan(training.epoch()["loss"]) for _ in range(3))


@pytest.mark.skipif("mnist1d-cnn" in HERE, reason="the package mnist1d is here")
def test_without_its_package_mnist1d_says_how_to_get_it():
    task = TASKS["mnist1d-cnn"]
    with pytest.raises(ModuleNotFoundError, match="pip install mnist1d"):
        task.start(draw(task), 0)


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_task_names_at_least_six_keys_that_matter(task: Any):
    assert set(task.without_effect) <= set(task.space)
    assert len(set(task.space) - set(task.without_effect)) >= 6
    assert any("choice" in domain for key, domain in task.space.items() if key not in task.without_effect)
    assert task.epochs in (27, 54, 81)


def test_half_of_the_tasks_are_for_design():
    assert sorted(task.half for task in TASKS.values()) == ["design"] * 4 + ["final"] * 4
    assert sum("schedule" in task.space for task in TASKS.values()) >= 3
