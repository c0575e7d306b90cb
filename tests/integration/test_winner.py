"""The winner: run again bit by bit, and trained from exported files by others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests import flavours
from tests.kit.training import Line, LineData
from tunelight.extras.digits import DigitsClassifier, DigitsData


def sweep(folder: Path, **kwargs: Any) -> tl.SweepResults:
    """Search a net with dropout: every random number counts."""
    settings: dict[str, Any] = {
        "metric": "val_loss", "num_samples": 4, "seed": 1, "storage": folder, "name": "m", "progress": False,
        "max_concurrent": 1, "trainer_args": {"accelerator": "cpu"}, "max_epochs": 3, "workers": 2,
        "scheduler": {"name": "asha", "grace_period": 1, "reduction_factor": 2},
    }  # fmt: skip
    space = {"model.lr": tl.loguniform(1e-4, 0.1), "data.batch_size": tl.choice([8, 16])}
    return tl.run(space, model=Line, data=LineData, **(settings | kwargs))


def test_trials_that_ran_on_a_used_gang_and_were_stopped_are_reproduced(ray4: Any, tmp_path: Path) -> None:
    results = sweep(tmp_path)
    stopped = next(trial for trial in results.trials[1:] if trial.state == "STOPPED")
    finished = next(trial for trial in results.trials if trial.state == "FINISHED")
    for trial in (stopped, finished):
        found = tl.reproduce(results, trial.id, progress=False)
        assert found.same, str(found)
        assert found.reports == len(trial.history)
        again = tl.SweepResults.load(found.folder)
        assert [one.id for one in again.trials] == [trial.id]
        assert again.trials[0].seed == trial.seed
        assert again.trials[0].config == trial.config


@pytest.mark.usefixtures("warm_gangs")
def test_an_exported_file_trains_the_winner_as_its_trial_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"model.lr": tl.choice([0.02]), "model.hidden": tl.choice([32]), "data.batch_size": tl.choice([32])}
    results = tl.run(
        space, model=DigitsClassifier, data=DigitsData, max_epochs=2, workers=2, metric="val_loss", num_samples=1,
        seed=7, scheduler="fifo", storage=tmp_path, progress=False,
        trainer_args={"accelerator": "cpu", "enable_progress_bar": False},
    )  # fmt: skip
    exported = results.export_best(tmp_path / "best.yaml", "lightning-cli")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    done = flavours.module("cli").LightningCLI(
        DigitsClassifier, DigitsData, args=["fit", f"--config={exported}", f"--trainer.default_root_dir={tmp_path}"]
    )
    for seeded in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # by seed_everything in the file
        os.environ.pop(seeded, None)
    assert done.trainer.world_size == 2
    assert done.model.hparams["hidden"] == 32
    assert float(done.trainer.callback_metrics["val_loss"]) == results.best.history[-1]["val_loss"]


def test_a_trained_winner_is_copied_and_loaded(ray4: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    results = sweep(tmp_path, scheduler="fifo", num_samples=2, max_epochs=2)
    results.export_best(tmp_path / "best.yaml", "lightning-cli", checkpoint=True)
    model = results.best.load_model()
    assert not any(module.training for module in model.modules())
    weights = load_file(tmp_path / "best.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
