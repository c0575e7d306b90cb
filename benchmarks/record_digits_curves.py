"""Record the digits tasks' learning curves for the simulator: tests/world/tables/digits*.npz.

    python benchmarks/record_digits_curves.py            # all of it, about half an hour on one core
    python benchmarks/record_digits_curves.py --short    # three configurations a task, packed beside the parts, for CI

Four tasks on scikit-learn's digits, of different hardness, and for each of them a sample of one search space of 260
configurations (the first 10 are chosen by hand: good ones and bad ones). Each is trained for 81 epochs from 3 seeds. It
can be stopped and started again: what is in ``--parts`` stays. The three seeds of a configuration are three slices of
one tensor, so that a step costs little more than a single model's; each slice has its own weights, order and
dropout. Seconds an epoch are measured apart, with a single slice.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from torch import Tensor

from tests.world.sources import FOLDER, LARGEST, Table, write_table
from tunelight.digits import load_digits

SEEDS = 3
EPOCHS = 81
CONFIGS = 260
PART = 10
"""Configurations in one part, the unit that is trained or not."""
TIMED = 5
SPACE = {
    "lr": {"loguniform": [10**-4.5, 10**0.5]},
    "hidden": {"lograndint": [4, 256]},
    "layers": {"randint": [1, 4]},
    "dropout": {"uniform": [0, 0.7]},
    "batch_size": {"choice": [32, 64, 128, 256]},
    "weight_decay": {"loguniform": [1e-6, 0.1]},
    "optimizer": {"choice": ["adam", "sgd"]},
}
"""What ``configurations`` draws from."""


@dataclass(frozen=True)
class Split:
    """A task's data: features [N, D] float32 and labels [N] int64, for training and validation."""

    x: Tensor
    y: Tensor
    val_x: Tensor
    val_y: Tensor
    classes: int


def _digits(train: slice = slice(None), wrong: float = 0.0) -> Split:
    """Return the digits; ``wrong`` is the share of training labels that are drawn anew."""
    images, held, _ = load_digits()
    x, y = (tensor[train] for tensor in images.tensors)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(10, y.shape, generator=generator)
    y = torch.where(torch.rand(y.shape, generator=generator) < wrong, drawn, y)
    return Split(x.flatten(1), y, held.tensors[0].flatten(1), held.tensors[1], 10)


def _sums() -> Split:
    """Return pairs of digits side by side; the label is their sum, which no picture shows."""
    images, held, _ = load_digits()
    generator = torch.Generator().manual_seed(2)

    def pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = (torch.randperm(len(y), generator=generator) for _ in range(2))
        return torch.cat((x[left].flatten(1), x[right].flatten(1)), 1), y[left] + y[right]

    return Split(*pairs(*images.tensors), *pairs(*held.tensors), 19)


TASKS: dict[str, Callable[[], Split]] = {
    "digits": _digits,
    "digits-few": lambda: _digits(slice(0, 200)),
    "digits-noisy": lambda: _digits(wrong=0.5),
    "digits-sum": _sums,
}


ABOUT = {
    "digits": "Digits of 8 x 8 pixels: a multilayer perceptron, cross-entropy.",
    "digits-few": "Digits of 8 x 8 pixels, 200 for training: a multilayer perceptron, cross-entropy.",
    "digits-noisy": "Digits of 8 x 8 pixels, half of the training labels drawn anew: a multilayer perceptron, "
    "cross-entropy.",
    "digits-sum": "The sum of two digits side by side: a multilayer perceptron, cross-entropy.",
}


def configurations(count: int) -> list[dict[str, Any]]:
    """Return the first ``count`` configurations, the same ones for every task."""
    rng = random.Random(0)
    by_hand = [
        {"lr": lr, "hidden": 64, "layers": 2, "dropout": 0.1, "batch_size": 64, "weight_decay": 1e-4, "optimizer": name}
        for name in ("adam", "sgd")
        for lr in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    ]
    drawn = [
        {
            "lr": 10 ** rng.uniform(-4.5, 0.5),
            "hidden": round(2 ** rng.uniform(2, 8)),
            "layers": rng.randint(1, 4),
            "dropout": rng.uniform(0, 0.7),
            "batch_size": rng.choice([32, 64, 128, 256]),
            "weight_decay": 10 ** rng.uniform(-6, -1),
            "optimizer": rng.choice(["adam", "sgd"]),
        }
        for _ in range(max(0, count - len(by_hand)))
    ]
    return (by_hand + drawn)[:count]


class Net:
    """As many equal multilayer perceptrons as there are generators, as slices of the same tensors."""

    def __init__(self, config: dict[str, Any], split: Split, generators: list[torch.Generator]) -> None:
        widths = [split.x.shape[1], *[config["hidden"]] * config["layers"], split.classes]
        self.generators, self.dropout = generators, config["dropout"]
        self.layers = []
        for fan_in, fan_out in itertools.pairwise(widths):
            weights = [torch.randn(fan_in, fan_out, generator=one) * math.sqrt(2 / fan_in) for one in generators]
            self.layers.append(
                (torch.stack(weights).requires_grad_(), torch.zeros(len(generators), 1, fan_out, requires_grad=True))
            )
        parameters = [tensor for layer in self.layers for tensor in layer]
        decay, lr = config["weight_decay"], config["lr"]
        self.optimizer: torch.optim.Optimizer
        if config["optimizer"] == "adam":
            self.optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=decay)

    def __call__(self, x: Tensor, *, train: bool = False) -> Tensor:
        """Map features [S, N, D] to logits [S, N, classes]."""
        for number, (weight, bias) in enumerate(self.layers):
            x = torch.baddbmm(bias, x, weight)
            if number < len(self.layers) - 1:
                x = torch.relu(x)
                if train and self.dropout:
                    kept = torch.stack([torch.rand(x.shape[1:], generator=one) for one in self.generators])
                    x = x * (kept >= self.dropout) / (1 - self.dropout)
        return x


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each slice, [S]."""
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return each.mean(1)


def train_epoch(net: Net, split: Split, batch_size: int) -> None:
    """Train every slice on all of the data once, each in an order of its own."""
    order = torch.stack([torch.randperm(len(split.y), generator=one) for one in net.generators])
    for batch in order.split(batch_size, dim=1):
        net.optimizer.zero_grad()
        losses(net(split.x[batch], train=True), split.y[batch]).sum().backward()
        net.optimizer.step()


def record(config: dict[str, Any], split: Split, epochs: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return validation loss and accuracy, [seeds, epochs] each, and the seconds of one epoch of one model."""
    net = Net(config, split, [torch.Generator().manual_seed(1000 + seed) for seed in range(SEEDS)])
    loss, accuracy = np.full((SEEDS, epochs), np.nan), np.full((SEEDS, epochs), np.nan)
    x, y = split.val_x.expand(SEEDS, -1, -1), split.val_y.expand(SEEDS, -1)
    for epoch in range(epochs):
        train_epoch(net, split, config["batch_size"])
        with torch.no_grad():
            logits = net(x)
            loss[:, epoch] = losses(logits, y).numpy()
            accuracy[:, epoch] = (logits.argmax(2) == y).float().mean(1).numpy()
        if not np.isfinite(loss[:, epoch]).any():
            break  # nothing finite comes back
    gone = np.maximum.accumulate(~np.isfinite(loss), axis=1)
    loss[gone] = accuracy[gone] = np.nan
    return np.clip(loss, None, LARGEST), accuracy, _seconds(config, split)


def _seconds(config: dict[str, Any], split: Split) -> float:
    net = Net(config, split, [torch.Generator().manual_seed(0)])
    took = []
    for _ in range(TIMED):
        begin = time.perf_counter()
        train_epoch(net, split, config["batch_size"])
        took.append(time.perf_counter() - begin)
    return min(took)  # what else runs here only adds


def record_part(path: Path, task: str, configs: list[dict[str, Any]], epochs: int) -> None:
    """Train the configurations of one part and write it whole."""
    split = TASKS[task]()
    loss, accuracy, seconds = zip(*(record(config, split, epochs) for config in configs), strict=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez(file, loss=np.stack(loss), accuracy=np.stack(accuracy), seconds=np.array(seconds))
    draft.replace(path)


def pack(parts: dict[str, list[Path]], configs: list[dict[str, Any]], folder: Path) -> None:
    """Write the tables of all parts that are there."""
    for task, paths in parts.items():
        loaded = [dict(np.load(path)) for path in paths]
        arrays = {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0]}
        seconds = arrays.pop("seconds")
        made = Table(
            ABOUT[task], {"loss": "min", "accuracy": "max"}, SPACE, (), configs[: len(seconds)], seconds, arrays
        )
        out = write_table(folder / f"{task}.npz", made)
        print(f"{task}: {len(seconds)} configurations: {out} ({out.stat().st_size / 1e3:.0f} kB)")


def main() -> int:
    """Record what is missing, then pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=Path, default=Path("runs", "curves"), help="where finished parts are kept")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder of the tables")
    parser.add_argument("--short", action="store_true", help="three configurations a task for two epochs")
    parser.add_argument("--pack", action="store_true", help="pack the leading parts that are there, train nothing")
    told = parser.parse_args()
    torch.set_num_threads(1)
    count, epochs, size = (3, 2, 3) if told.short else (CONFIGS, EPOCHS, PART)
    folder = told.parts / "short" if told.short else told.parts
    out = folder / "tables" if told.short else told.out
    folder.mkdir(parents=True, exist_ok=True)
    configs = configurations(count)
    done: dict[str, list[Path]] = {task: [] for task in TASKS}
    for first in range(0, count, size):
        for task in TASKS:
            path = folder / f"{task}-{first:04d}.npz"
            if not path.exists() and not told.pack:
                record_part(path, task, configs[first : first + size], epochs)
                print(f"{task}: configurations {first} to {first + size - 1}", flush=True)
            if path.exists() and len(done[task]) * size == first:
                done[task].append(path)
    if not all(done.values()):
        print("There is nothing to pack yet.", file=sys.stderr)
        return 1
    pack(done, configs, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
