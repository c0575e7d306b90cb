"""Train functions that several integration tests use, and notes of what they see. They run on workers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tunelight.compat.lightning import pl
from tunelight.settings.backends import BACKENDS

QUIET: dict[str, Any] = {"accelerator": "cpu", "logger": False} | dict.fromkeys(
    ("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
"""Arguments of a Trainer that writes and prints nothing."""


class TwoLayers(pl.LightningModule):
    """Two layers and no chance, which note the epochs that they train."""

    def __init__(self, stage: int = 0, lr: float = 0.05) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stage, self.lr = stage, lr
        self.backbone, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.epochs: list[int] = []

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1])

    def on_train_epoch_start(self) -> None:
        self.epochs.append(self.current_epoch)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=self.lr, momentum=0.9)


class Line(pl.LightningModule):
    """A small net on fixed data; dropout makes every random number count."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class LineData(pl.LightningDataModule):
    """64 points to learn from, 32 to judge by."""

    def __init__(self, batch_size: int = 8, num_workers: int = 0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers

    def _loader(self, seed: int, count: int, shuffle: bool) -> DataLoader[Any]:
        x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        persistent = self.num_workers > 0
        return DataLoader(
            data, self.batch_size, shuffle=shuffle, num_workers=self.num_workers, persistent_workers=persistent
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(0, 64, True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(1, 32, False)


def trainer(epochs: int = 3, report: Any = None, callbacks: Sequence[Any] = (), **kwargs: Any) -> pl.Trainer:
    """Return a quiet Trainer on the gang, whose last callback reports."""
    report = report or tl.TuneReportCallback({"loss": "val_loss"}, on="validation_end")
    settings: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"} | kwargs
    if "strategy" not in settings:
        settings["strategy"] = BACKENDS[tl.get_context().backend].load_strategy()()
    return pl.Trainer(max_epochs=epochs, callbacks=[*callbacks, report], **settings)


def note(name: str, **seen: Any) -> None:
    """Append a line to a file that this rank has in the trial's folder: its process, the time, and what it has seen."""
    me = tl.get_context()
    with Path(me.trial_dir, f"{name}-{me.rank}.jsonl").open("a") as file:
        print(json.dumps({"pid": os.getpid(), "time": time.time(), **seen}), file=file)


def notes(trial: tl.TrialResult, name: str) -> list[list[dict[str, Any]]]:
    """Return the lines that each rank has noted, by rank."""
    files = sorted(trial.path.glob(f"{name}-*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def plain(config: dict[str, Any]) -> None:
    """Train three epochs and report each."""
    trainer().fit(Line(config["lr"]), datamodule=LineData())
