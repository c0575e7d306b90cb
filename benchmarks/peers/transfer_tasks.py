"""Four trainings whose cost is that of their width, for benchmarks/transfer.py: data are made here, in a second.

Each is a LightningModule whose ``width`` is NARROW or eight times that, and a LightningDataModule; labels come from
random teachers with noise, so that losses have a floor that nothing reaches in these few steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import tunelight as tl
from tunelight.compat.lightning import pl

FACTOR = 8
"""How many times as wide a model in full is."""
EPOCHS = 8
STEPS = 4
"""Of an epoch."""
VALIDATION = 384


# --- models -----------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    """Three hidden layers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        hidden = [part for _ in range(2) for part in (nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))]
        self.net = nn.Sequential(nn.Linear(32, width), nn.ReLU(), *hidden, nn.Linear(width, 10))
        _he(self.net)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows [N, 32] to logits [N, 10]."""
        out: Tensor = self.net(x)
        return out


class Cnn(nn.Module):
    """Three convolutions, and the mean over places."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, width, 4, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width, 8)),
        )
        _he(self.net)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [N, 1, 8, 8] to logits [N, 8]."""
        out: Tensor = self.net(x)
        return out


class Gru(nn.Module):
    """A recurrent layer, whose last state is classified."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.gru = nn.GRU(6, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences [N, T, 6] to logits [N, 6]."""
        states, _ = self.gru(x)
        out: Tensor = self.head(self.dropout(states[:, -1]))
        return out


class Transformer(nn.Module):
    """One block of two heads, which grow with the width."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(8, width), nn.Embedding(8, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols [N, T] to logits [N, 6, T], one for each place."""
        states = self.block(self.symbol(x) + self.place(torch.arange(x.shape[1], device=x.device)))
        out: Tensor = self.head(self.norm(states))
        return out.transpose(1, 2)


def _he(net: nn.Module) -> None:
    """Draw initial weights that keep the size of activations from layer to layer (He et al., arXiv 1502.01852)."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# --- data -------------------------------------------------------------------------------------------------

Made = tuple[Tensor, Tensor]
"""Inputs and labels."""


def _noisy(logits: Tensor, noise: float, draw: torch.Generator) -> Tensor:
    """Return the largest of standardised logits, after noise."""
    standard = (logits - logits.mean(0)) / logits.std(0)
    return (standard + noise * torch.randn(logits.shape, generator=draw)).argmax(1)


def rows_data(count: int, draw: torch.Generator) -> Made:
    """Label rows by a random network of two layers."""
    first, second = torch.randn(32, 48, generator=draw) / 32**0.5, torch.randn(48, 10, generator=draw)
    x = torch.randn(count, 32, generator=draw)
    return x, _noisy(torch.tanh(x @ first) @ second, 0.3, draw)


def image_data(count: int, draw: torch.Generator) -> Made:
    """Put one of eight patterns somewhere into noise."""
    patterns = torch.randn(8, 4, 4, generator=draw)
    labels = torch.randint(8, (count,), generator=draw)
    x = torch.randn(count, 1, 8, 8, generator=draw)
    for row, label in enumerate(labels.tolist()):
        top, left = torch.randint(5, (2,), generator=draw).tolist()
        x[row, 0, top : top + 4, left : left + 4] += 2.0 * patterns[label]
    return x, labels


def sequence_data(count: int, draw: torch.Generator) -> Made:
    """Label sequences by the last state of a random recurrent network."""
    inner, outer = 1.2 * torch.randn(16, 16, generator=draw) / 4, torch.randn(6, 16, generator=draw) / 6**0.5
    out = torch.randn(16, 6, generator=draw)
    x = torch.randn(count, 6, 6, generator=draw)
    state = torch.zeros(count, 16)
    for step in range(x.shape[1]):
        state = torch.tanh(state @ inner + x[:, step] @ outer)
    return x, _noisy(state @ out, 0.3, draw)


def symbol_data(count: int, draw: torch.Generator) -> Made:
    """Label each place by its symbol and the one before it, through a random table; one label in ten is random."""
    table = torch.randint(6, (8, 8), generator=draw)
    x = torch.randint(8, (count, 8), generator=draw)
    labels = table[x, x.roll(1, 1)]
    random = torch.rand(labels.shape, generator=draw) < 0.1
    return x, torch.where(random, torch.randint(6, labels.shape, generator=draw), labels)


# --- tasks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One of the trainings.

    Attributes:
        name, about: its name, and what it is.
        narrow: the proxy's width.
        batch: examples of a step, of all workers together.
        space: what is searched; the keys are arguments of ``Net``.
    """

    name: str
    about: str
    narrow: int
    batch: int
    network: Callable[[int, float], nn.Module]
    data: Callable[[int, torch.Generator], Made]
    optimizer: Callable[..., torch.optim.Optimizer]
    space: Mapping[str, Any]

    @property
    def wide(self) -> int:
        """The width in full."""
        return FACTOR * self.narrow


def _sgd(parameters: Any, lr: float, weight_decay: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=momentum, weight_decay=weight_decay, fused=True)


def _adam(parameters: Any, lr: float, weight_decay: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr, betas=(momentum, 0.99), weight_decay=weight_decay, fused=True)


_LR, _DROPOUT, _WARMUP = tl.loguniform(1e-4, 0.3), tl.uniform(0.0, 0.5), tl.uniform(0.0, 0.5)
TASKS = {
    task.name: task
    for task in (
        Task(
            *("mlp", "an MLP with SGD and momentum, on rows", 64, 320, Mlp, rows_data, _sgd),
            {
                "lr": tl.loguniform(1e-3, 3.0),
                "momentum": tl.uniform(0.0, 0.95),
                "weight_decay": tl.loguniform(1e-6, 1e-1),
                "dropout": _DROPOUT,
            },
        ),
        Task(
            *("cnn", "a CNN with Adam, on images", 12, 64, Cnn, image_data, _adam),
            {"lr": _LR, "momentum": tl.uniform(0.0, 0.95), "dropout": _DROPOUT, "warmup": _WARMUP},
        ),
        Task(
            *("gru", "a GRU with Adam, on sequences", 32, 128, Gru, sequence_data, _adam),
            {"lr": _LR, "momentum": tl.uniform(0.0, 0.95), "dropout": _DROPOUT, "warmup": _WARMUP},
        ),
        Task(
            *("transformer", "a transformer with AdamW, on symbols", 32, 48, Transformer, symbol_data, _adam),
            {"lr": _LR, "weight_decay": tl.loguniform(1e-4, 3.0), "dropout": _DROPOUT, "warmup": _WARMUP},
        ),
    )
}


class Net(pl.LightningModule):
    """A task's model with its hyperparameters; ``warmup``: the share of all steps in which the learning rate rises."""

    def __init__(
        self,
        task: str,
        width: int,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        dropout: float = 0.0,
        warmup: float = 0.0,
    ) -> None:
        super().__init__()
        self._task = TASKS[task]
        self._given = (lr, weight_decay, momentum)
        self._warmup = max(1.0, warmup * EPOCHS * STEPS)
        self.net = self._task.network(width, dropout)

    def training_step(self, batch: Made, _: int) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Made, _: int) -> None:
        """Log the loss of a batch."""
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return the task's optimizer, whose learning rate rises for a while."""
        optimizer = self._task.optimizer(self.parameters(), *self._given)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self._warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Rows(Dataset[Any]):
    """Examples that are taken by the batch."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        return self._x[index], self._y[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self._x[list(indices)], self._y[list(indices)]


def _as_it_is(batch: Any) -> Any:
    return batch


@functools.cache
def examples(name: str) -> tuple[Rows, Rows]:
    """Return a task's examples for training and for validation, the same ones each time."""
    task = TASKS[name]
    count = task.batch * STEPS
    x, y = task.data(count + VALIDATION, torch.Generator().manual_seed(0))
    return Rows(x[:count], y[:count]), Rows(x[count:], y[count:])


class Data(pl.LightningDataModule):
    """A task's data: a step has as many examples with two workers as with one."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self._name = task

    def _workers(self) -> int:
        return 1 if self.trainer is None else self.trainer.world_size

    def train_dataloader(self) -> Any:
        """Return the examples for training."""
        size = TASKS[self._name].batch // self._workers()
        return DataLoader(examples(self._name)[0], size, shuffle=True, drop_last=True, collate_fn=_as_it_is)

    def val_dataloader(self) -> Any:
        """Return the examples for validation, all at once."""
        return DataLoader(examples(self._name)[1], VALIDATION // self._workers(), collate_fn=_as_it_is)
