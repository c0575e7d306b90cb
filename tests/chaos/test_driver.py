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
from tests.integration.test_strategies import Small, data, trainer
from tunelight import errors


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
@pytest.mark.parametrize("kind", [tl.RayStrategy, tl.HorovodRayStrategy, tl.RayShardedStrategy])
def test_a_killed_worker_is_an_error_and_the_next_fit_has_new_ones(kind: Any, tmp_path: Path) -> None:
    one = trainer(kind(num_workers=2))
    model = Killed(tmp_path / "dead")
    with pytest.raises(errors.WorkerFailedError, match=r"rank 1 on .*the worker's process died"):
        one.fit(model, data())
    before = model.layer.weight.detach().clone()
    one.fit(model, data())
    assert not torch.equal(before, model.layer.weight)


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
        ("RayStrategy", signal.SIGINT),
        ("RayStrategy", signal.SIGKILL),
        ("HorovodRayStrategy", signal.SIGINT),
    ],
)
def test_a_driver_that_is_interrupted_or_killed_leaves_no_worker(tmp_path: Path, strategy: str, sent: int) -> None:
    script, log = tmp_path / "script.py", tmp_path / "log.txt"
    script.write_text(SCRIPT.replace("STRATEGY", strategy))
    family: list[psutil.Process] = []
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, str(script)], stdout=out, stderr=out, cwd=tmp_path)
    try:
        _wait(lambda: "[1] TRAINING" in log.read_text() or process.poll() is not None, 60, "training to begin")
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(_workers(family)) == 2, log.read_text()
        process.send_signal(sent)
        _wait(lambda: not _workers(family), 10, "the workers to end")
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        for one in family:  # Ray's own agents notice a killed driver after a minute only
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
