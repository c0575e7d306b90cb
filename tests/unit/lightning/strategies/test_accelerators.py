"""The accelerator of a driver's Trainer, and what Lightning makes of a precision by it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import pytest
import torch

import tunelight as tl
from tests.marks import needs_horovod
from tunelight.compat.lightning import CUDAAccelerator, pl
from tunelight.errors import StrategyError


def test_a_gpu_accelerator_without_use_gpu_is_refused_by_lightning() -> None:
    with pytest.raises(Exception, match=r"No supported gpu backend|choose one device type"):
        pl.Trainer(strategy=tl.RayStrategy(), accelerator="gpu", logger=False)


def test_a_cpu_accelerator_with_use_gpu_is_refused_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(StrategyError, match="reserves 1 GPU for each worker"):
        pl.Trainer(strategy=tl.RayStrategy(use_gpu=True), accelerator="cpu", logger=False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        (tl.RayStrategy, "16-mixed"),
        (tl.RayStrategy, "bf16-mixed"),
        (tl.RayStrategy, "32-true"),
        pytest.param(tl.HorovodRayStrategy, "16-mixed", marks=needs_horovod),
        (tl.RayShardedStrategy, "bf16-mixed"),
    ],
)
def test_a_driver_without_a_gpu_keeps_the_precision_for_workers_with_gpus(kind: Any, precision: Any) -> None:
    """For CPUs Lightning makes bf16-mixed of 16-mixed."""
    trainer = pl.Trainer(strategy=kind(2, use_gpu=True), precision=precision, logger=False, enable_checkpointing=False)
    assert trainer.precision == precision
    assert trainer.precision_plugin is trainer.strategy.precision_plugin
    assert isinstance(trainer.accelerator, CUDAAccelerator)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("kind", [tl.RayStrategy, tl.RayShardedStrategy])
def test_one_strategy_serves_one_trainer_after_another_there(kind: Any) -> None:
    strategy = kind(2, use_gpu=True)
    for _ in range(3):
        trainer = pl.Trainer(strategy=strategy, logger=False, enable_checkpointing=False)
        assert (trainer.num_devices, trainer.device_ids) == (1, [0])


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("devices", "number"), [("auto", 1), (2, 2), ("2", 2), ("0,1", 2), ([0, 1], 2), (-1, 1)])
def test_the_number_of_devices_is_read_as_lightning_does(devices: Any, number: int) -> None:
    strategy = tl.RayStrategy(2, use_gpu=True)
    trainer = pl.Trainer(strategy=strategy, devices=devices, logger=False, enable_checkpointing=False)
    read = trainer._accelerator_connector._devices_flag
    assert (len(read) if isinstance(read, list) else read) == number


@pytest.mark.usefixtures("no_gpu")
def test_on_a_mac_the_cpu_is_chosen_as_for_any_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    strategy = tl.RayStrategy(2, use_gpu=True)
    assert strategy.use_gpu
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", logger=False, enable_checkpointing=False)
    assert trainer.world_size == 2


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
def test_a_loss_is_scaled_on_ranks_though_the_driver_has_no_gpu(join: Any) -> None:
    """A scaler that is made where there is no GPU is switched off, wherever it is sent."""
    driver = tl.RayStrategy(2, use_gpu=True)
    trainer = pl.Trainer(strategy=driver, precision="16-mixed", logger=False, enable_checkpointing=False)
    made: Any = trainer.precision_plugin
    assert not made.scaler.is_enabled()
    sent = pickle.loads(cloudpickle.dumps(driver.for_ranks()))
    join()
    ranked = copy.copy(driver)
    ranked.arrive(sent)
    plugin: Any = ranked.precision_plugin
    assert (plugin.precision, plugin.device) == ("16-mixed", "cpu")  # the fake rank is on a CPU
    assert plugin.scaler.is_enabled()
