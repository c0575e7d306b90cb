"""A small transformer under torch.compile, and how long its first step takes."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

LENGTH, CLASSES, BATCH = 16, 4, 32


class Transformer(torch.nn.Module):
    """Classifies sequences of numbers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True)
        self.first = torch.nn.Linear(1, width)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = torch.nn.Linear(LENGTH * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (batch, CLASSES)."""
        return self.last(self.encoder(self.first(x)).flatten(1))  # type: ignore[no-any-return]


class Classifier(pl.LightningModule):
    """Trains a compiled transformer."""

    def __init__(self, width: int, dropout: float, lr: float, backend: str) -> None:
        super().__init__()
        self.lr = lr
        self.net = Transformer(width, dropout)
        self.net.compile(backend=backend)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class FirstStep(pl.Callback):
    """Notes when the first step has ended."""

    at = 0.0

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Note the time, once."""
        self.at = self.at or time.time()


def fit(config: dict[str, Any], strategy: Any) -> float:
    """Train a few steps; return the seconds from the call to the end of the first."""
    began, first = time.time(), FirstStep()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8 * BATCH, LENGTH, 1, generator=generator)
    data = DataLoader(TensorDataset(x, torch.arange(len(x)) % CLASSES), batch_size=BATCH)
    trainer = pl.Trainer(
        max_steps=2, accelerator="cpu", devices=1, strategy=strategy, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[first],
    )  # fmt: skip
    trainer.fit(Classifier(**config), data)
    return first.at - began
