"""Fits of the tasks of benchmarks/transfer.py: in a plain loop, and by Lightning's Trainer.

They train alike, to the last bit; the loop has none of the Trainer's costs, which would hide those of the width.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from transfer_tasks import EPOCHS, Data, Net, Task

from tunelight.compat.lightning import pl
from tunelight.extras.widths.callback import WiderModel
from tunelight.extras.widths.wider import Wider

WORST = 100.0
"""The loss of a model that has none, and the most that is written down."""


class Fit(NamedTuple):
    """What a training reported: the validation loss of each epoch, and the processor's seconds of the median one."""

    losses: list[float]
    seconds: float


def wider(task: Task, arguments: Mapping[str, Any]) -> list[WiderModel]:
    """Return the callback that ``proxy=`` gives a model."""
    return Wider(Net, {"model.width": task.narrow}).callbacks(arguments)


def arguments_of(task: Task, width: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Net``."""
    return {"task": task.name, "width": width, **config}


def plain_fit(
    task: Task, width: int, config: Mapping[str, Any], seed: int, *, rescaled: bool, epochs: int = EPOCHS
) -> Fit:
    """Train without a Trainer: with the same loader, the same callback and the same hooks of its optimizer."""
    arguments = arguments_of(task, width, config)
    callbacks = wider(task, arguments) if rescaled else []
    torch.manual_seed(seed)
    module, data = Net(**arguments), Data(task.name)
    made = module.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    trainer: Any = SimpleNamespace(ckpt_path=None, optimizers=[optimizer])
    for callback in callbacks:
        callback.setup(trainer, module, "fit")
        callback.on_fit_start(trainer, module)
        callback.on_train_start(trainer, module)
    batches, checks = data.train_dataloader(), data.val_dataloader()
    losses: list[float] = []
    took: list[float] = []
    while len(losses) < epochs:
        if losses and losses[-1] == WORST:  # nothing comes of it any more
            losses.append(WORST)
            continue
        began = time.process_time()
        module.train()
        for number, batch in enumerate(batches):
            optimizer.zero_grad()
            module.training_step(batch, number).backward()
            optimizer.step()
            schedule.step()
        module.eval()
        with torch.no_grad():
            loss = float(sum(module.training_step(batch, 0) for batch in checks))
        took.append(time.process_time() - began)
        losses.append(min(loss, WORST) if math.isfinite(loss) else WORST)
    return Fit(losses, sorted(took)[len(took) // 2])


def lightning_fit(
    task: Task, width: int, config: Mapping[str, Any], seed: int, *, rescaled: bool, epochs: int = EPOCHS
) -> Fit:
    """Train by Lightning's Trainer, as a sweep does."""
    arguments = arguments_of(task, width, config)
    watch = _Watch()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about loaders' workers
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=epochs,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[watch, *(wider(task, arguments) if rescaled else [])],
        )
        torch.manual_seed(seed)
        trainer.fit(Net(**arguments), Data(task.name))
    return Fit(watch.losses, sorted(watch.took)[len(watch.took) // 2])


class _Watch(pl.Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.took: list[float] = []
        self._began = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the time."""
        self._began = time.process_time()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note how long it took, and the loss of the validation, which comes before."""
        self.took.append(time.process_time() - self._began)
        self.losses.append(float(trainer.callback_metrics["val_loss"]))
