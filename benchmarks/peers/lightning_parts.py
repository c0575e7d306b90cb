"""The parts of the workload that need Lightning; imported by workers, so that drivers start without it."""

from __future__ import annotations

import os
from typing import Any

import torch
from jobs import THREADS, Work
from torch.utils.data import ConcatDataset, DataLoader

from tunelight.compat.lightning import pl
from tunelight.extras.digits import DigitsData


class LongDigits(DigitsData):
    """The digits with their training images ``repeats`` times over, so that an epoch takes longer."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training images ``repeats`` times, shuffled."""
        return DataLoader(ConcatDataset([self.train] * self.repeats), batch_size=self.batch_size, shuffle=True)


def build_data(repeats: int) -> DigitsData:
    """Return the data module of a job."""
    return DigitsData() if repeats == 1 else LongDigits(repeats)


class Reported(pl.Callback):
    """Write down that a report returned; comes after a peer's own callbacks."""

    def __init__(self, job: Work, trial: int) -> None:
        self.job, self.trial = job, trial

    def _tell(self, trainer: pl.Trainer, event: str, **fields: Any) -> None:
        self.job.tell(trainer.global_rank, self.trial, event, **fields)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write down that the report of an epoch returned."""
        if not trainer.sanity_checking:
            self._tell(trainer, "reported")


class Timeline(Reported):
    """Write down set-up, first batch and every validation; comes before a peer's own callbacks."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set the thread count where training happens (a spawned process starts with its own)."""
        torch.set_num_threads(THREADS)
        self._tell(trainer, "setup", threads=torch.get_num_threads(), omp=os.environ.get("OMP_NUM_THREADS"))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Write down the first batch of the trial."""
        if trainer.global_step == 0 and batch_idx == 0:
            self._tell(trainer, "first_batch")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write down that an epoch is about to be reported."""
        if not trainer.sanity_checking:
            metrics = trainer.callback_metrics
            self._tell(trainer, "validated", loss=metrics["val_loss"].item(), acc=metrics["val_acc"].item())
