"""A sweep whose trials write down each step that they train: ``python leaving_sweep.py STORAGE NAME TRIALS LOG``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tunelight.compat.lightning import pl

STEPS, EPOCHS, STEP_S = 120, 4, 0.04
SPACE = {"model.lr": tl.loguniform(0.001, 0.1)}
WAIT_S = 120.0


class Slow(pl.LightningModule):
    """A small net with dropout, whose step takes 40 ms; rank 0 appends each step to ``log``."""

    def __init__(self, lr: float = 0.1, log: str | None = None) -> None:
        super().__init__()
        self.lr, self.log_file = lr, log
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Take a step, and write it down."""
        time.sleep(STEP_S)
        if self.log_file is not None and self.trainer.is_global_zero:
            with Path(self.log_file).open("a") as log:
                log.write(f"{tl.get_context().trial_id} {self.trainer.global_step} {time.time()}\n")
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the loss."""
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Data(pl.LightningDataModule):
    """``STEPS`` batches for each of two ranks."""

    def _loader(self, count: int, shuffle: bool) -> DataLoader[Any]:
        x = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return what is trained on."""
        return self._loader(2 * STEPS * 4, True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return what is validated on."""
        return self._loader(32, False)


def run(
    storage: str, name: str, trials: int, log: str | None = None, *, epochs: int = EPOCHS, **more: Any
) -> tl.SweepResults:
    """Run the sweep, or go on with it."""
    return tl.run(
        {**SPACE, "model.log": log} if log else SPACE, model=Slow, data=Data, max_epochs=epochs, metric="val_loss",
        num_samples=trials, workers=2, scheduler="fifo", seed=1, trainer_args={"accelerator": "cpu"}, storage=storage,
        name=name, progress=False, resume=True, **more,
    )  # fmt: skip


def steps(log: Path) -> list[tuple[str, int, float]]:
    """Return the steps trained so far: trial, step, time."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(trial, int(step), float(at)) for trial, step, at in map(str.split, lines)]


def until(reached: Callable[[], Any], what: str) -> Any:
    """Wait for something; return what it is. Raises: RuntimeError after two minutes."""
    end = time.time() + WAIT_S
    while not (value := reached()):
        if time.time() > end:
            raise RuntimeError(f"waited {WAIT_S:.0f} s for {what}")
        time.sleep(0.005)
    return value


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
