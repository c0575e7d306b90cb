"""What the sweeps in this folder trained; their records hold a hash of the classes, so leave these as they are."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Line(pl.LightningModule):
    """Fit a line; a configuration with ``hidden`` of 8 fails."""

    def __init__(self, lr: float = 0.01, hidden: int = 2, kind: str = "plain", slope: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        if hidden == 8:
            raise ValueError("8 is too wide")
        activation = nn.LeakyReLU(slope) if kind == "leaky" else nn.Identity()
        self.net = nn.Sequential(nn.Linear(1, hidden), activation, nn.Linear(hidden, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        points, values = batch
        return nn.functional.mse_loss(self.net(points), values)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        points, values = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(points), values), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        time.sleep(0.3)  # long enough to be interrupted

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Points(pl.LightningDataModule):
    """64 points of the line y = 2x + 1."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str | None = None) -> None:
        points = torch.linspace(-1, 1, 64)[:, None]
        self.points = TensorDataset(points, 2 * points + 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, self.batch_size)
