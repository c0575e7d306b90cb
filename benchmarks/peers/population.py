"""The population of pbt.py: its members' batches, rates and size, and their training.

Two members train at once, each on 2 ranks. Their metrics are fixed (the first is always better), so that the second
learns from the first at each comparison; weights and optimizer states are real. The driver notes decisions, ranks note
the batches that follow: all on one machine, by one clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jobs import QUIET, THREADS, Work

BATCHES = 4
"""Batches of an epoch; a report comes after each epoch."""
SAMPLES = 16
"""Rows of a batch, of 64 numbers each."""
RATES = (1e-3, 1e-4)
SPACE = (1e-5, 1e-2)
INTERVAL = 2
"""Reports from one comparison to the next."""
DRIVER = 9
"""The driver's number, beside the ranks, in names of event files."""


@dataclass(frozen=True, kw_only=True)
class Population(Work):
    """Two members of ``megabytes`` of weights, that report ``reports`` times."""

    megabytes: float
    reports: int

    @property
    def width(self) -> int:
        """The width of two hidden layers with which weights take ``megabytes``."""
        return math.ceil(math.sqrt(self.megabytes * 1e6 / 4 + 32**2) - 32)

    def decided(self) -> None:
        """Note the decision that the second member learns from the first. Runs on: driver."""
        self.tell(DRIVER, 1, "decision")


def train_member(job: Population, config: dict[str, Any], trial_id: str) -> None:
    """Train one member. Runs on: worker."""
    import pytorch_lightning as pl
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import tunelight as tl
    from tunelight.session.session import get_session

    number = int(trial_id.rsplit("_", 1)[-1])

    class Member(pl.LightningModule):
        """Two hidden layers, trained by Adam; it reports its number, whatever it learns."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, job.width), nn.ReLU(), nn.Linear(job.width, job.width), nn.ReLU())

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.log("loss", float(number), on_step=False, on_epoch=True, sync_dist=True)
            loss: torch.Tensor = self.net(batch[0]).pow(2).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=config["lr"])  # its state is twice the weights

    class Timeline(pl.Callback):
        """Write down each epoch's first batch, and how long adopting took this rank."""

        def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
            exchange: Any = get_session().exchange
            adopt = exchange.adopt

            def timed(*args: Any) -> Any:
                adopted = adopt(*args)
                job.tell(trainer.global_rank, number, "adopted", seconds=adopted.seconds)
                return adopted

            exchange.adopt = timed

        def on_train_batch_start(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx == 0:
                job.tell(trainer.global_rank, number, "batch")

    torch.set_num_threads(THREADS)
    report = tl.TuneReportCheckpointCallback({"loss": "loss"}, on="train_epoch_end")
    given = {**QUIET, "callbacks": [Timeline(), report], "strategy": tl.RayStrategy()}
    x = torch.randn(2 * BATCHES * SAMPLES, 64, generator=torch.Generator().manual_seed(0))
    pl.Trainer(max_epochs=job.reports, **given).fit(Member(), DataLoader(TensorDataset(x), SAMPLES))
