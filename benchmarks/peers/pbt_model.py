"""The parts of :mod:`pbt_parts` that need Lightning: a member, and the callback that notes its batches."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from events import write_event
from pbt_data import BATCHES, SAMPLES, Population
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tunelight.session.session import get_session


class Member(pl.LightningModule):
    """Two hidden layers of ``width``, trained by Adam; it reports ``quality``, whatever it learns."""

    def __init__(self, lr: float, width: int, quality: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Return a loss; log the quality, the same on all ranks."""
        self.log("loss", self.hparams["quality"], on_step=False, on_epoch=True, sync_dist=True)
        loss: torch.Tensor = self.net(batch[0]).pow(2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam: its state is twice the weights."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


class Timeline(pl.Callback):
    """Write down each batch's begin, with a sum over the weights and the rate, and how long adopting took this rank."""

    def __init__(self, job: Population, member: int) -> None:
        self.job = job
        self.member = member

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Time the exchange of this trial's session."""
        exchange: Any = get_session().exchange
        adopt = exchange.adopt

        def timed(*args: Any) -> Any:
            adopted = adopt(*args)
            write_event(self.job.folder, trainer.global_rank, self.member, "adopted", seconds=adopted.seconds)
            return adopted

        exchange.adopt = timed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the first batch of each epoch."""
        if batch_idx == 0:
            write_event(
                self.job.folder,
                trainer.global_rank,
                self.member,
                "batch",
                lr=trainer.optimizers[0].param_groups[0]["lr"],
                epoch=trainer.current_epoch,
            )


def build_loader() -> DataLoader[Any]:
    """Return the same few batches for everyone; Lightning deals them to the ranks."""
    x = torch.randn(2 * BATCHES * SAMPLES, 64, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x), SAMPLES)
