"""What every peer of pbt.py trains, and how it writes down when a member learns from another.

Two members train at once, each on 2 ranks. What they report is fixed (the first is always better), so that the second
learns from the first at each comparison; weights and optimizer states are real. A decision is noted by the driver, the
batches that come after it by the ranks: all of them on one machine, by one clock.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workload import run_job, write_event

BATCHES = 4
"""Batches of an epoch; a report comes after each epoch."""
SAMPLES = 16
"""Rows of a batch, of 64 numbers each."""
RATES = (1e-3, 1e-4)
SPACE = (1e-5, 1e-2)
INTERVAL = 2
"""Reports from one comparison to the next."""
DRIVER = 9
"""The driver's number among the ranks that write events."""


@dataclass(frozen=True)
class Population:
    """Two members of ``megabytes`` of weights, that report ``reports`` times; ``folder`` takes events and storage."""

    folder: str
    megabytes: float
    reports: int
    ranks: int = 2

    @classmethod
    def load(cls, path: str | Path) -> Population:
        """Read a job that :meth:`save` wrote."""
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @property
    def width(self) -> int:
        """The width of two hidden layers with which weights take ``megabytes``."""
        return math.ceil(math.sqrt(self.megabytes * 1e6 / 4 + 32**2) - 32)

    def collect(self) -> list[dict[str, Any]]:
        """Return all events, of driver and ranks, in the order of their times."""
        events = [
            {**json.loads(line), "rank": int(path.stem.split("-")[1])}
            for path in Path(self.folder).glob("events-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return sorted(events, key=lambda one: float(one["time"]))

    def decided(self) -> None:
        """Note that the second member is to learn from the first, which is what happens next. Runs on: driver."""
        write_event(self.folder, DRIVER, 1, "decision")


def train_member(job: Population, config: dict[str, Any], member: int, **trainer_args: Any) -> None:
    """Train one member. Runs on: worker."""
    import pytorch_lightning as pl
    import torch
    from pbt_model import Member, Timeline, build_loader

    import tunelight as tl

    torch.set_num_threads(1)
    report = tl.TuneReportCheckpointCallback({"loss": "loss"}, on="train_epoch_end")
    trainer = pl.Trainer(
        max_epochs=job.reports,
        accelerator="cpu",
        strategy=tl.RayStrategy(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Timeline(job, member), report],
        **trainer_args,
    )
    trainer.fit(Member(config["lr"], job.width, float(member)), build_loader())


def run_population(run: Callable[[Population, argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Run a peer of pbt.py from its command line."""
    run_job(run, Population.load, Population.collect, parser)
