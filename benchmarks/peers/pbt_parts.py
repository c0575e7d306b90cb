"""The training of pbt.py's peers, and the events by which a member's learning from another is timed.

Two members train at once, each on 2 ranks. Their metrics are fixed (the first is always better), so that the second
learns from the first at each comparison; weights and optimizer states are real. The driver notes decisions, ranks note
the batches that follow: all on one machine, by one clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from pbt_data import Population
from workload import run_job


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
