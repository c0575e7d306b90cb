"""A sweep under TPE and ASHA: its record, its study, and its winner run again bit by bit and from exported files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tunelight as tl
from tests import flavours
from tests.kit.training import Line, LineData
from tunelight.extras.digits import DigitsClassifier, DigitsData
from tunelight.reporting import report


@pytest.fixture(scope="module")
def results(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> tl.SweepResults:
    """Search a net with dropout: every random number counts."""
    return tl.run(
        {"model.lr": tl.loguniform(1e-4, 0.1), "data.batch_size": tl.choice([8, 16])}, model=Line, data=LineData,
        metric="val_loss", num_samples=6, seed=1, workers=2, max_concurrent=1, max_epochs=3, name="m", progress=False,
        scheduler={"name": "asha", "grace_period": 1, "reduction_factor": 2}, storage=tmp_path_factory.mktemp("sweep"),
        searcher={"name": "tpe", "n_startup_trials": 3}, baselines=[{"model.lr": 0.1, "data.batch_size": 8}],
        trainer_args={"accelerator": "cpu", "enable_progress_bar": False},
    )  # fmt: skip


def test_the_record_says_who_trained_on_what_and_whether_it_was_warm(results: tl.SweepResults, tmp_path: Path) -> None:
    gangs = [trial.gangs for trial in results.record.trials.values()]
    assert [[gang["warm"] for gang in found] for found in gangs] == [[False], *[[True]] * 5]
    assert len({gang["gang"] for found in gangs for gang in found}) == 1
    assert all(len(gang["nodes"]) == 2 for found in gangs for gang in found)
    assert gangs[0][0]["ready"] > gangs[0][0]["began"]  # two workers start and meet
    assert report(results, tmp_path / "report.html").stat().st_size > 4_000_000


def test_optuna_finds_a_study_of_what_the_record_has(results: tl.SweepResults) -> None:
    assert not results.errors, results.errors[0].error
    study = results.to_study()
    states = [trial.state.name for trial in study.trials]
    assert states.count("COMPLETE") == results.counts["FINISHED"] > 0
    assert states.count("PRUNED") == results.counts["STOPPED"] > 0
    for trial, told in zip(results.trials, study.trials, strict=True):
        assert told.user_attrs["trial"] == trial.id
        assert told.params == trial.config
        assert list(told.intermediate_values.values()) == [report["val_loss"] for report in trial.history]
        if trial.state == "FINISHED":
            assert told.value == trial.value


def test_trials_that_ran_on_a_used_gang_and_were_stopped_are_reproduced(results: tl.SweepResults) -> None:
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


def test_weights_of_the_winner_are_copied_and_loaded(results: tl.SweepResults, tmp_path: Path) -> None:
    results.export_best(tmp_path / "best.yaml", "lightning-cli", checkpoint=True)
    model = results.best.load_model()
    assert not any(module.training for module in model.modules())
    weights = load_file(tmp_path / "best.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


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
