"""ray_lightning's issues 83, 62 and 76: what a stop, an exception and a lost worker leave behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.integration.parity import (
    BACKENDS,
    EVERY_BACKEND,
    KINDS,
    Boring,
    Tell,
    loader,
    same,
    strategy,
    trainer,
    weights,
)
from tunelight import errors

pytestmark = pytest.mark.usefixtures("warm_gangs")


def free_cpus(expected: float, seconds: float = 5.0) -> float:
    """Return how many CPUs are free, once it is as many as expected: Ray counts a little later."""
    import ray

    end = time.monotonic() + seconds
    while (free := ray.available_resources().get("CPU", 0.0)) != expected and time.monotonic() < end:
        time.sleep(0.05)
    return float(free)


class Failing(Boring):
    """Raises on one rank in its third step, until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.mended = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 2 and self.global_rank == 1 and not self.mended:
            raise ZeroDivisionError("on purpose")
        return super().training_step(batch, batch_idx)


def pid(one: pl.Trainer, module: pl.LightningModule) -> int:
    return os.getpid()


@EVERY_BACKEND
def test_after_an_exception_a_second_fit_on_the_same_trainer_works(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, pid)
    model, one = Failing(), trainer(backend, callbacks=[told])
    with pytest.raises(errors.WorkerFailedError, match="rank 1 on .*: ZeroDivisionError: on purpose"):
        one.fit(model, loader())
    first = told.heard()
    model.mended = True
    before = weights(model)
    one.fit(model, loader())
    assert one.state.finished
    assert one.global_step == 4
    assert not same(before, weights(model))
    assert told.heard() == first  # the workers have lived on


@BACKENDS
def test_after_an_exception_the_driver_s_model_is_as_it_was(backend: str) -> None:
    model, one = Failing(), trainer(backend)
    before = weights(model)
    with pytest.raises(errors.WorkerFailedError):
        one.fit(model, loader())
    assert same(before, weights(model), atol=0)
    assert one.interrupted or one.state.status == "interrupted"


class Dying(Boring):
    """One rank's process is killed in the second epoch, once."""

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        done = Path(self.folder, "died")
        if self.current_epoch == 1 and self.global_rank == 1 and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


@BACKENDS
def test_a_lost_worker_is_an_error_and_the_next_fit_goes_on_from_the_checkpoint(backend: str, tmp_path: Path) -> None:
    """Issue 76: workers are lost without a hang, and new ones go on."""
    kept = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}")
    model, one = Dying(str(tmp_path)), trainer(backend, max_epochs=2, callbacks=[kept], enable_checkpointing=True)
    began = time.monotonic()
    with pytest.raises(errors.WorkerFailedError, match="rank 1 on .*died"):
        one.fit(model, loader())
    assert time.monotonic() - began < 30
    assert [file.name for file in tmp_path.glob("*.ckpt")] == ["epoch=0.ckpt"]
    one.fit(model, loader(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert (one.current_epoch, one.global_step) == (2, 8)


def test_all_cpus_are_free_after_shutdown(warm_gangs: Any) -> None:
    strategies = [strategy(backend) for backend in KINDS]
    for ours in strategies:
        trainer(ours).fit(Boring(), loader())
    assert free_cpus(1.0) == 1.0  # the gangs are warm: half a CPU for each of six workers
    for ours in strategies:
        ours.shutdown()
    assert not warm_gangs._idle
    assert free_cpus(4.0) == 4.0
    strategies[0].shutdown()  # again, and it does nothing


def test_all_cpus_are_free_after_an_exception_and_the_with_block() -> None:
    with pytest.raises(errors.WorkerFailedError), strategy("ddp", 1) as ours:
        model = Failing()
        model.training_step = None  # type: ignore[method-assign, assignment]  # whatever fails
        trainer(ours).fit(model, loader())
    assert free_cpus(4.0) == 4.0
