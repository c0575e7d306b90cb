"""What the tests of parity with ray_lightning share: a model, data, Trainers, and what ranks tell of themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tunelight as tl
from tunelight.compat.lightning import pl

KINDS: dict[str, Any] = {"ddp": tl.RayStrategy, "horovod": tl.HorovodRayStrategy, "sharded": tl.RayShardedStrategy}
_SLOW = pytest.mark.slow
BACKENDS = pytest.mark.parametrize("backend", ["ddp", pytest.param("horovod", marks=_SLOW)])
EVERY_BACKEND = pytest.mark.parametrize(
    "backend", ["ddp", *(pytest.param(kind, marks=_SLOW) for kind in KINDS if kind != "ddp")]
)
"""CI runs the themes on DDP; make test-full, and pytest without -m, on all of them."""


class Numbered(Dataset[Any]):
    """Points of 8 numbers, each with its index."""

    def __init__(self, size: int = 32) -> None:
        self.points = torch.randn(size, 8, generator=torch.Generator().manual_seed(size))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        return index, self.points[index]


def loader(size: int = 32, batch_size: int = 4, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Numbered(size), batch_size, **settings)


class Boring(pl.LightningModule):
    """Lightning's BoringModel, smaller: one layer from 8 numbers to 2, which learns that both are 1."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(8, 2)

    def loss(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = (self.layer(batch[1]) - 1).square().mean()
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch), sync_dist=True)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        predicted: torch.Tensor = self.layer(batch[1])
        return predicted

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


def strategy(backend: str, num_workers: int = 2, **settings: Any) -> Any:
    """Return a strategy whose workers hold half a CPU each: gangs of all backends stay warm on the session's four."""
    return KINDS[backend](num_workers, **{"num_cpus_per_worker": 0.5, **settings})


def trainer(backend: Any, **settings: Any) -> pl.Trainer:
    """Return a quiet Trainer for an epoch on two workers; ``backend`` may be a strategy too."""
    quiet: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(strategy=strategy(backend) if backend in KINDS else backend, **{**quiet, **settings})


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a model's weights."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 1e-6) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=atol) for name in one)


class Tell(pl.Callback):
    """Writes what ``look`` finds on each rank at a hook to a file of the rank's own, as JSON."""

    def __init__(
        self, folder: Path, look: Callable[[pl.Trainer, pl.LightningModule], Any], on: str = "train_start"
    ) -> None:
        self.folder = folder
        self.look = look
        self.on = on

    def _tell(self, hook: str, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if hook == self.on:
            (self.folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(self.look(trainer, module)))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._tell("train_start", trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._tell("train_end", trainer, pl_module)

    def heard(self) -> list[Any]:
        """Return what each rank has told since this was last asked, by rank."""
        files = sorted(self.folder.glob("rank-*.json"))
        told = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return told


def lines(folder: Path, name: str) -> list[str]:
    """Return the lines that ranks have appended to a file, sorted."""
    file = folder / name
    return sorted(file.read_text().splitlines()) if file.exists() else []


def note(folder: Path, name: str, line: object) -> None:
    """Append a line to a file that several processes write."""
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")


def numbers(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def indices(batches: Sequence[Any]) -> list[int]:
    return [int(index) for batch in batches for index in batch]
