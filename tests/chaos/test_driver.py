"""A fit on a gang of its own: its worker is killed, its driver is interrupted, its driver is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import tunelight as tl
from tests import flavours
from tests.integration.test_strategies import Small, data, trainer
from tests.kit.training import Line, LineData
from tests.processes import family
from tunelight import errors
from tunelight.compat.lightning import pl
from tunelight.extras.standalone import driver


class Killed(Small):
    """Its rank 1 dies in the first step, once."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_rank == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


@pytest.mark.usefixtures("warm_gangs")
@pytest.mark.parametrize(
    "kind",
    [
        tl.RayStrategy,
        pytest.param(tl.HorovodRayStrategy, marks=pytest.mark.slow),
        pytest.param(tl.RayShardedStrategy, marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_is_an_error_and_the_next_fit_has_new_ones(kind: Any, tmp_path: Path) -> None:
    one = trainer(kind(num_workers=2, failures=0))
    model = Killed(tmp_path / "dead")
    with pytest.raises(errors.WorkerFailedError, match=r"rank 1 on .*the worker's process died"):
        one.fit(model, data())
    before = model.layer.weight.detach().clone()
    one.fit(model, data())
    assert not torch.equal(before, model.layer.weight)


class Doomed(Line):
    """Its last rank dies once, in the middle of an epoch."""

    def __init__(self, mark: Path) -> None:
        super().__init__(0.05)
        self.mark = mark

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        last = self.global_rank == self.trainer.world_size - 1
        if self.current_epoch == 3 and batch_idx == 1 and last and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def fitted(kind: Any, mark: Path, workers: Any = 2) -> tuple[pl.Trainer, Doomed]:
    torch.manual_seed(3)
    one, model = trainer(kind(num_workers=workers), max_epochs=5, default_root_dir=mark.parent), Doomed(mark)
    one.fit(model, datamodule=LineData())
    return one, model


@pytest.mark.usefixtures("warm_gangs")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        (tl.RayStrategy, 2),
        (tl.RayStrategy, (1, 2)),
        pytest.param(tl.HorovodRayStrategy, 2, marks=pytest.mark.slow),
        pytest.param(tl.RayShardedStrategy, 2, marks=pytest.mark.slow),
    ],
)
def test_a_fit_that_loses_a_worker_ends_as_if_it_had_not(
    kind: Any, workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "SAFE_EVERY_S", 0.0)
    survived, model = fitted(kind, tmp_path / "dead", workers)
    assert (tmp_path / "dead").exists()
    said = capfd.readouterr().err
    assert "tunelight: failed on rank 1 " in said
    assert "going on from epoch " in said
    assert ("goes on with 1 workers" in said) == (workers != 2)
    (tmp_path / "alive").touch()
    undisturbed, other = fitted(kind, tmp_path / "alive", workers)
    assert survived.global_step == undisturbed.global_step == 20
    exact = kind is tl.RayStrategy and workers == 2
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0 if exact else 1e-5)
    assert not (tmp_path / ".tunelight").exists()


SCRIPT = """
import time
from typing import Any
import pytorch_lightning as pl, torch
import tunelight as tl
from torch.utils.data import DataLoader, TensorDataset

class Slow(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            print("TRAINING", flush=True)
        time.sleep(0.05)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, strategy=tl.STRATEGY(num_workers=2))
trainer.fit(Slow(), DataLoader(TensorDataset(torch.zeros(100_000, 4))))
"""


def _wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def _workers(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return the gang's workers that run."""
    found = []
    for member in family:
        try:
            if member.status() != psutil.STATUS_ZOMBIE and "GangWorker" in " ".join(member.cmdline()):
                found.append(member)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize(
    ("strategy", "sent"),
    [
        pytest.param("RayStrategy", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("RayStrategy", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("HorovodRayStrategy", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_is_interrupted_or_killed_leaves_no_worker(tmp_path: Path, strategy: str, sent: int) -> None:
    script, log = tmp_path / "script.py", tmp_path / "log.txt"
    script.write_text(flavours.written(SCRIPT).replace("STRATEGY", strategy))
    members: list[psutil.Process] = []
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, str(script)], stdout=out, stderr=out, cwd=tmp_path)
    try:
        _wait(lambda: "[1] TRAINING" in log.read_text() or process.poll() is not None, 60, "training to begin")
        members = family(process.pid)
        assert len(_workers(members)) == 2, log.read_text()
        process.send_signal(sent)
        _wait(lambda: not _workers(members), 10, "the workers to end")
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        for one in members:  # Ray's own agents notice a killed driver after a minute only
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
