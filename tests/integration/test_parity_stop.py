"""ray_lightning's issues 83, 62 and 76: what a stop, an exception and a lost worker leave behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.parity import (
    BACKENDS,
    EVERY_BACKEND,
    Boring,
    Tell,
    loader,
    same,
    strategy,
    trainer,
    weights,
)
from tunelight import errors
from tunelight.compat.lightning import pl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


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
    pids = []
    for _ in range(2):  # what the first fit leaves on the workers is not to hold up the second failure
        model, one = Failing(), trainer(backend, callbacks=[told])
        began = time.monotonic()
        with pytest.raises(errors.WorkerFailedError, match=r"rank 1 on .*: ZeroDivisionError: on purpose"):
            one.fit(model, loader())
        model.mended = True
        before = weights(model)
        pids.append(told.heard())
        one.fit(model, loader())
        assert one.state.finished
        assert one.global_step == 4
        assert not same(before, weights(model))
        pids.append(told.heard())
    assert pids == pids[:1] * 4  # the workers have lived on
    assert time.monotonic() - began < 4


@BACKENDS
def test_after_an_exception_the_driver_s_model_is_as_it_was(backend: str) -> None:
    model, one = Failing(), trainer(backend)
    before = weights(model)
    with pytest.raises(errors.WorkerFailedError):
        one.fit(model, loader())
    assert same(before, weights(model), atol=0)
    assert one.interrupted


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


def test_a_lost_worker_is_an_error_and_the_next_fit_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    """Issue 76: no hang, and new workers go on. tests/chaos/test_driver.py kills workers of each backend."""
    kept = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="{epoch}")
    fragile = strategy("ddp", failures=0)
    model, one = Dying(str(tmp_path)), trainer(fragile, max_epochs=2, callbacks=[kept], enable_checkpointing=True)
    began = time.monotonic()
    with pytest.raises(errors.WorkerFailedError, match=r"rank 1 on .*died"):
        one.fit(model, loader())
    assert time.monotonic() - began < 30
    assert [file.name for file in tmp_path.glob("*.ckpt")] == ["epoch=0.ckpt"]
    one.fit(model, loader(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert (one.current_epoch, one.global_step) == (2, 8)


def held(gangs: Any) -> float:
    """Return how many CPUs warm gangs hold."""
    return float(sum(one.gang.spec.workers * one.gang.spec.reservation.cpus_per_worker for one in gangs._idle))


def test_cpus_are_free_after_an_exception_and_the_with_block(warm_gangs: Any) -> None:
    with pytest.raises(errors.WorkerFailedError), strategy("horovod") as ours:
        trainer(ours).fit(Failing(), loader())
    assert "horovod" not in {one.gang.spec.backend for one in warm_gangs._idle}
    assert free_cpus(4 - held(warm_gangs)) == 4 - held(warm_gangs)


def test_all_cpus_are_free_after_shutdown(warm_gangs: Any) -> None:
    strategies = [strategy("ddp"), strategy("sharded")]
    for ours in strategies:
        trainer(ours).fit(Boring(), loader())
    assert held(warm_gangs) == 2
    assert free_cpus(2) == 2
    for ours in strategies:
        ours.shutdown()
    assert free_cpus(4) == 4
    assert not warm_gangs._idle
    strategies[0].shutdown()  # once more does nothing
