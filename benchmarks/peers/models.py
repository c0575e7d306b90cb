"""The models of strategies.py with their data, their Trainer and the callback that measures; needs Lightning."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from fits import Fit, Fits
from jobs import QUIET, THREADS
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tunelight.extras.zoo import VisionTransformer

CLASSES = 10
SEED = 7
_POOL = 64
"""Samples that were generated; a dataset repeats them."""
LEARNING_RATE = 1e-5
"""So low that no model learns its few images by heart: with gradients near 0, arithmetic has another speed."""


class MLP(nn.Module):
    """Linear layers of the given widths with ReLU between them."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images, of whatever shape they are."""
        logits: torch.Tensor = self.layers(images.flatten(1))
        return logits


def build_net(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a model, the same for the same global seed, and the shape of one of its inputs."""
    if name == "tiny":
        return MLP(64, 128, CLASSES), (64,)
    if name == "mlp":  # 5.0 million parameters
        return MLP(784, 1600, 1600, 720, CLASSES), (784,)
    if name == "vit":  # 4.8 million
        return VisionTransformer(layers=4).net, (3, 32, 32)
    if name == "big":  # 50.4 million, 201 MB
        return MLP(*[2048] * 13, CLASSES), (2048,)
    raise ValueError(f"no model is called {name!r}: tiny, mlp, vit or big")


class Generated(Dataset[Any]):
    """``length`` images of noise with labels: a small pool, repeated, and made where it is read."""

    def __init__(self, shape: tuple[int, ...], length: int) -> None:
        self.shape, self.length = shape, length
        self.pool: tuple[torch.Tensor, torch.Tensor] | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pool is None:
            generator = torch.Generator().manual_seed(SEED)
            images = torch.randn(_POOL, *self.shape, generator=generator)
            self.pool = images, torch.randint(CLASSES, (_POOL,), generator=generator)
        return self.pool[0][index % _POOL], self.pool[1][index % _POOL]


class Classifier(pl.LightningModule):
    """A model with its optimizer and the data of one fit."""

    def __init__(self, fit: Fit, ranks: int) -> None:
        super().__init__()
        self.net, shape = build_net(fit.model)
        self.data = Generated(shape, fit.steps * fit.batch)
        self.optimizer, self.batch = fit.optimizer, fit.batch // ranks

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss of a rank's part of a batch."""
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the fit's optimizer."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)
        return torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the fit's data; who trains with several ranks shards it."""
        return DataLoader(self.data, batch_size=self.batch, shuffle=False)


class Clock:
    """One rank's times of a fit. Plain loops call it as :class:`ClockCallback` does."""

    def __init__(self, job: Fits, index: int) -> None:
        self.job, self.index = job, index
        self.first = 0.0
        self.ends: list[float] = []
        self.loss = torch.tensor(0.0)

    def begin_batch(self) -> None:
        """Note when the first batch began."""
        self.first = self.first or time.time()

    def end_batch(self, loss: torch.Tensor) -> None:
        """Note when a batch ended, its optimizer step included."""
        self.ends.append(time.time())
        self.loss = loss

    def write(self, rank: int, parameters: Iterable[nn.Parameter], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Write down the times, and what this rank holds."""
        held = held_bytes(parameters, optimizers)
        times = {"first": self.first, "ends": self.ends, "loss": float(self.loss)}
        self.job.tell(rank, self.index, "trained", **times, threads=torch.get_num_threads(), held=held)


class ClockCallback(pl.Callback):
    """A :class:`Clock` that Lightning drives."""

    def __init__(self, job: Fits, index: int) -> None:
        self.clock = Clock(job, index)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set the thread count where training happens (a spawned process starts with its own)."""
        torch.set_num_threads(THREADS)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note when the first batch began."""
        self.clock.begin_batch()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note when a batch ended."""
        self.clock.end_batch(outputs["loss"])

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write all of it down, while gradients and optimizer states are there."""
        self.clock.write(trainer.global_rank, pl_module.parameters(), trainer.optimizers)


def held_bytes(parameters: Iterable[nn.Parameter], optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, int]:
    """Return the bytes of parameters, gradients and optimizer states that this rank holds, of shards its own."""
    weights = list(parameters)
    states = (value for one in optimizers for state in one.state.values() for value in state.values())
    return {
        "parameters": _bytes(weights),
        "gradients": _bytes(one.grad for one in weights),
        "states": _bytes(states),
    }


def _bytes(values: Iterable[Any]) -> int:
    return sum(one.nbytes for one in _local(values))


def _local(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.to_local() if hasattr(value, "to_local") else value


def build(job: Fits, index: int, **trainer_args: Any) -> tuple[pl.Trainer, Classifier]:
    """Return a fit's Trainer and its model, seeded. Runs on: each rank (driver where the peer launches them)."""
    fit = job.fits[index]
    torch.set_num_threads(THREADS)
    pl.seed_everything(SEED, verbose=False)
    model = Classifier(fit, job.ranks)
    callbacks: list[pl.Callback] = [ClockCallback(job, index)]
    trainer = pl.Trainer(max_epochs=1, max_steps=fit.steps, callbacks=callbacks, **QUIET, **trainer_args)
    return trainer, model
