"""Whole sweeps on a real Ray: what a user runs, and what is left afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import tunelight as tl
from tests.kit.sweeps import run
from tests.kit.training import plain
from tunelight.errors import StorageError

SPACE = {"lr": tl.loguniform(1e-3, 1e-1)}


def test_a_fifo_sweep_trains_every_trial_to_its_end_and_is_read_back_and_exported(ray4: Any, tmp_path: Path) -> None:
    results = run(SPACE, plain, tmp_path, 3)
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 3
    for trial in results.trials:
        assert [report["training_iteration"] for report in trial.history] == [1, 2, 3]
        assert [report["epoch"] for report in trial.history] == [0, 1, 2]
    best = min((report["loss"], trial.id) for trial in results.trials for report in trial.history)
    assert (results.best.value, results.best.id) == best
    assert results.best_config == results.best.config
    assert results.counts["STOPPED"] == 0

    for name, read in (("best.yaml", yaml.safe_load), ("best.json", json.loads)):
        results.export_best(tmp_path / name)
        assert read((tmp_path / name).read_text())["config"] == results.best_config
    assert tl.SweepResults.load(tmp_path / "s").best.history == results.best.history
    with pytest.raises(StorageError, match="name="):
        run(SPACE, plain, tmp_path, 3)
