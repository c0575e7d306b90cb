"""The parts of :mod:`kills` that need Lightning: the training, and the callback that kills a rank of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from jobs import QUIET, THREADS
from kills import VICTIM, Fault
from lightning_parts import build_data

from tunelight.extras.digits import DigitsClassifier, DigitsData

FINISHED = 2
"""Epochs that are finished, and have their checkpoints, when a rank is killed."""
EPOCHS = 500
"""More than are trained: the callback ends it."""


class Victim(pl.Callback):
    """Write down every batch, kill one rank once, and end the training when it has survived that."""

    def __init__(self, job: Fault) -> None:
        self.job = job
        self.began = time.time()
        self.batches = 0

    def _write(self, trainer: pl.Trainer, event: str) -> None:
        about = {"epoch": trainer.current_epoch, "size": trainer.world_size, "began": self.began}
        self.job.tell(trainer.global_rank, 0, event, **about)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Note when this process began to train, anew after a fault."""
        torch.set_num_threads(THREADS)
        self.began, self.batches = time.time(), 0
        self._write(trainer, "began")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note when model, data and checkpoint were there."""
        self._write(trainer, "built")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Kill this process, if it is to be killed."""
        job = self.job
        if (
            job.kill
            and trainer.global_rank == VICTIM
            and trainer.current_epoch >= FINISHED
            and batch_idx == int(trainer.num_training_batches) // 2
            and time.time() - self.began >= job.after_s
            and job.noted() is None
        ):
            job.note(trainer.current_epoch)
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note that a batch is finished."""
        self.batches += 1
        self._write(trainer, "batch")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that an epoch is finished, and end the training with it if all is survived."""
        if self.batches:  # a run that goes on from an epoch's end comes here before its first batch
            self._write(trainer, "epoch")
        if trainer.strategy.broadcast(self._is_over(trainer)):
            trainer.should_stop = True

    def _is_over(self, trainer: pl.Trainer) -> bool:
        fault = self.job.noted()
        if fault is None or not self.batches:
            return False
        survived = self.began > fault["time"] and trainer.current_epoch >= fault["epoch"]
        return (survived and trainer.world_size == self.job.size) or time.time() - fault["time"] > self.job.limit_s


def build(
    job: Fault, *, callbacks: Iterable[Any] = (), **trainer_args: Any
) -> tuple[pl.Trainer, DigitsClassifier, DigitsData]:
    """Return the Trainer, its model and data, seeded. Runs on: each rank (driver where the peer launches them)."""
    torch.set_num_threads(THREADS)
    pl.seed_everything(7, verbose=False)
    given = {**QUIET, "num_sanity_val_steps": 0, "callbacks": [Victim(job), *callbacks], **trainer_args}
    trainer = pl.Trainer(max_epochs=EPOCHS, **given)
    return trainer, DigitsClassifier(lr=1e-3, hidden=128), build_data(job.repeats)
