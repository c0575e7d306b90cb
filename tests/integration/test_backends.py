"""Sweeps whose gangs meet by Horovod, or shard their models: what holds for DDP holds for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests.kit.training import Line, LineData, plain, saving, trainer

BACKENDS = pytest.mark.parametrize("backend", ["horovod", pytest.param("sharded", marks=pytest.mark.slow)])


def sweep(tmp_path: Path, train: Any, backend: Any, **kwargs: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "loss", "num_samples": 2, "workers": 2, "seed": 7, "storage": tmp_path, "name": backend,
        "scheduler": "fifo", "progress": False, "max_concurrent": 1,
    }  # fmt: skip
    return tl.run({"lr": tl.loguniform(1e-3, 1e-1)}, train, backend=backend, **(settings | kwargs))


def failing(config: dict[str, Any]) -> None:
    """Fail on rank 1 in a step of the trial with the great learning rate."""

    class Failing(Line):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if config["lr"] > 0.5 and self.global_rank == 1 and number == 1:
                raise ZeroDivisionError("on purpose")
            return super().training_step(batch, number)

    trainer().fit(Failing(config["lr"]), datamodule=LineData())


def test_all_backends_train_alike(ray4: Any, tmp_path: Path) -> None:
    losses = {
        backend: [[r["loss"] for r in trial.history] for trial in sweep(tmp_path, plain, backend).trials]
        for backend in ("ddp", "horovod", "sharded")
    }
    for backend in ("horovod", "sharded"):
        for ours, theirs in zip(losses[backend], losses["ddp"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5)


@BACKENDS
def test_a_failing_rank_is_the_trial_s_error_and_the_gang_trains_on(ray4: Any, tmp_path: Path, backend: Any) -> None:
    configs = [{"lr": lr} for lr in (0.01, 0.9, 0.01)]
    results = sweep(tmp_path, failing, backend, num_samples=3, baselines=configs)
    assert [trial.state for trial in results.trials] == ["FINISHED", "ERROR", "FINISHED"]
    assert str(results.errors[0].error).startswith("rank 1 on ")
    assert "ZeroDivisionError" in str(results.errors[0].error)
    first, _, third = (trial.history for trial in results.trials)
    assert [len(first), len(third)] == [3, 3]


@BACKENDS
def test_asha_stops_trials_and_checkpoints_load(ray4: Any, tmp_path: Path, backend: Any) -> None:
    configs = [{"lr": lr} for lr in (0.1, 1e-4, 1e-5)]
    results = sweep(
        tmp_path, saving, backend, num_samples=3, baselines=configs,
        scheduler={"name": "asha", "max_t": 3, "grace_period": 1, "reduction_factor": 2},
    )  # fmt: skip
    assert results.num_stopped >= 1
    saved = torch.load(str(results.best.checkpoint), weights_only=True)
    assert saved["state_dict"].keys() == Line().state_dict().keys()
    assert saved["optimizer_states"]


@BACKENDS
def test_a_model_sweep_takes_the_backend_s_strategy(ray4: Any, tmp_path: Path, backend: Any) -> None:
    results = tl.run(
        {"model.lr": tl.loguniform(1e-3, 1e-1)}, model=Line, data=LineData, max_epochs=2, backend=backend,
        metric="val_loss", num_samples=1, workers=2, storage=tmp_path, name="m", progress=False,
        trainer_args={"logger": False, "accelerator": "cpu"},
    )  # fmt: skip
    assert [trial.state for trial in results.trials] == ["FINISHED"]


def other(config: dict[str, Any]) -> None:
    trainer(strategy=tl.RayStrategy()).fit(Line(), datamodule=LineData())


def test_a_strategy_that_does_not_match_the_backend_is_an_error(ray4: Any, tmp_path: Path) -> None:
    results = sweep(tmp_path, other, "horovod", num_samples=1)
    assert "backend='ddp', and this one has 'horovod'" in str(results.errors[0].error)
