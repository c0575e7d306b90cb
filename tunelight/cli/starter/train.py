"""A model and its data, to be replaced by your own, piece by piece.

Train it as it is:      python train.py fit --trainer.max_epochs 10
Search its settings:    tunelight run space.yaml
Train the winner:       tunelight best last --export best.yaml --format lightning-cli
                        python train.py fit --config best.yaml
"""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    """Tell which of three spirals a point lies on, by a net with two hidden layers."""

    def __init__(self, lr: float = 1e-3, hidden: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()  # so that a checkpoint knows how its model was made
        self.net = nn.Sequential(
            nn.Linear(2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, 3),
        )

    def forward(self, points: Tensor) -> Tensor:
        """Return the logits, shape [B, 3], of points of shape [B, 2]."""
        logits: Tensor = self.net(points)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        points, arms = batch
        return nn.functional.cross_entropy(self(points), arms)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log what trials are judged by: every metric that is logged here is reported after each epoch."""
        points, arms = batch
        logits = self(points)
        accuracy = (logits.argmax(dim=-1) == arms).float().mean()
        loss = nn.functional.cross_entropy(logits, arms)
        self.log_dict({"val_loss": loss, "val_acc": accuracy}, sync_dist=True)  # averaged over all workers

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with the learning rate that is searched."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


class Spirals(pl.LightningDataModule):
    """3,000 points on three arms of a spiral, with some noise: 2,400 to learn from, 600 to judge by.

    ``batch_size`` counts points a worker.
    """

    def __init__(self, batch_size: int = 64, noise: float = 0.2) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.noise = noise

    def setup(self, stage: str | None = None) -> None:
        """Make the points, the same on every worker."""
        generator = torch.Generator().manual_seed(0)
        arms = torch.arange(3000) % 3
        radius = torch.rand(3000, generator=generator)
        angle = 4 * radius + arms * 2 * math.pi / 3 + self.noise * torch.randn(3000, generator=generator)
        points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
        self.train = TensorDataset(points[:2400], arms[:2400])
        self.val = TensorDataset(points[2400:], arms[2400:])

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the points to learn from, shuffled; Lightning gives each worker its share."""
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the points to judge by."""
        return DataLoader(self.val, self.batch_size)


if __name__ == "__main__":
    from pytorch_lightning.cli import LightningCLI

    LightningCLI(Classifier, Spirals)
