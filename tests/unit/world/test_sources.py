"""Where a simulation's curves come from: the recorded table, and sweeps that were run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tunelight as tl
from tests.world import TableCurves, recorded, tasks
from tests.world.sources import Table, read_table, write_table

# --- the recorded table -----------------------------------------------------------------------------------


SPACE = {"lr": {"loguniform": [0.01, 1.0]}, "kind": {"choice": ["a", "b", "c"]}, "log_every": {"choice": [1, 10]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two tables of three configurations, two seeds and four epochs."""
    loss = np.arange(24).reshape(3, 2, 4).astype(float)
    loss[2, :, 2:] = np.nan
    configs = [{"lr": 0.1 * (1 + n), "kind": "abc"[n], "log_every": (1, 10, 10)[n]} for n in range(3)]
    metrics = {"loss": loss, "accuracy": -loss}
    made = Table("A test.", {"loss": "min", "accuracy": "max"}, SPACE, ("log_every",), configs, [1, 2, 3], metrics)
    for task in ("digits", "wine"):
        write_table(tmp_path / f"{task}.npz", made)
    return tmp_path


def test_a_recorded_task_is_read_as_it_was_written(folder: Path):
    assert tasks(folder) == ["digits", "wine"]
    table = recorded("digits", folder=folder)
    assert (table.size, table.epochs, table.metric, table.mode) == (3, 4, "loss", "min")
    assert table.space.describe() == tl.SearchSpace(SPACE).describe()
    config = table.config(0, 0)
    curve = table.curve(config)
    number, seed = (int(part) for part in config["_curve"].split(":"))
    assert config["kind"] == "abc"[number]
    assert curve.seconds == number + 1
    assert curve.at(1) == {"loss": 8.0 * number + 4 * seed, "accuracy": -(8.0 * number + 4 * seed)}
    assert recorded("digits", folder=folder, metric="accuracy").mode == "max"


def test_curves_are_cut_or_stretched_to_the_epochs_that_are_asked_for(folder: Path):
    config = {"_curve": "0:0"}
    assert recorded("digits", folder=folder, epochs=2).curve(config).metrics["loss"] == [0, 1]
    assert recorded("digits", folder=folder, epochs=8).curve(config).metrics["loss"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert recorded("digits", folder=folder, epoch_s=7.0).curve(config).seconds == 7


def test_a_suggestion_is_looked_up_by_rank_and_by_name(folder: Path):
    table = recorded("digits", folder=folder)
    assert table.curve({"lr": 0.21, "kind": "b"}).seconds == 2
    assert table.curve({"lr": 50.0}).seconds == 3
    assert table.curve({"kind": "a", "unknown": 4}).seconds == 1
    assert table.curve({"kind": "a", "log_every": 10}).seconds == 1  # which is without effect


def test_a_configuration_may_choose_its_recorded_seed(folder: Path):
    table = recorded("digits", folder=folder)
    first = [table.curve({"lr": 0.1, "_seed": seed}).at(1)["loss"] for seed in range(4)]
    assert first == [0, 4, 0, 4]
    assert table.curve({"_curve": "1:0", "_seed": 3}).at(1)["loss"] == 12


def test_the_truth_is_the_best_value_averaged_over_seeds(folder: Path):
    table = recorded("digits", folder=folder)
    assert [table.truth({"kind": kind}) for kind in "abc"] == [2, 10, 18]
    assert table.truth({"kind": "a", "_seed": 1}) == 2
    assert recorded("digits", folder=folder, metric="accuracy").truth({"kind": "b"}) == -10
    half = [[[1.0, np.nan], [np.nan, np.nan]]]
    assert TableCurves("one", {"loss": half}, [1], [{"lr": 1}]).truth({"lr": 1}) == np.inf
    worst = TableCurves("one", {"loss": half}, [1], [{"lr": 1}], mode="max")
    assert worst.truth({"lr": 1}) == -np.inf


@pytest.mark.parametrize("task", tasks())
def test_a_table_that_comes_along_is_complete(task: str):
    table = read_table(task)
    assert len(table.seconds) == len(table.configs)
    assert (table.seconds > 0).all()
    shapes = {values.shape for values in table.metrics.values()}
    assert len(shapes) == 1
    count, seeds, epochs = shapes.pop()
    assert (count, seeds >= 2, epochs in (27, 54, 81)) == (len(table.configs), True, True)
    assert count >= (260 if epochs == 81 else 400)
    assert len(set(table.space) - set(table.without_effect)) >= 5
    assert set(table.without_effect) <= set(table.space)
    assert all(set(config) == set(table.space) for config in table.configs)
    assert any("choice" in domain for domain in recorded(task).space.describe().values())
    best = np.array([recorded(task).truth({"_curve": f"{number}:0"}) for number in range(count)])
    assert np.isfinite(best).mean() > 0.5
    gone = ~np.isfinite(table.metrics["loss"])
    assert (np.maximum.accumulate(gone, axis=2) == gone).all()  # nothing comes after a divergence
