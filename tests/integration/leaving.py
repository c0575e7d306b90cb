"""A model whose epochs take a while, and its sweep: ``python -m tests.integration.leaving ADDRESS STORAGE``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tunelight.compat.lightning import pl

STEPS, EPOCHS = 60, 2


class Slow(pl.LightningModule):
    """A small net with dropout; each step takes 30 ms."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        time.sleep(0.03)
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Data(pl.LightningDataModule):
    """As many batches for each of two ranks as there are steps."""

    def _loader(self, count: int, shuffle: bool) -> DataLoader[Any]:
        x = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
        return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(2 * STEPS * 4, True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(32, False)


def settings(folder: Path | str, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a sweep of one trial."""
    return {
        "model": Slow, "data": Data, "max_epochs": EPOCHS, "metric": "val_loss", "num_samples": 1, "workers": 2,
        "scheduler": "fifo", "seed": 1, "trainer_args": {"accelerator": "cpu"}, "storage": folder, "name": name,
        "progress": False, **more,
    }  # fmt: skip


SPACE = {"model.lr": tl.loguniform(0.001, 0.1)}
