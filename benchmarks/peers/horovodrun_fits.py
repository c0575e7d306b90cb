"""Row d: horovodrun with a plain loop over the same steps, by Horovod's own recipe and without Lightning's Trainer."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from fits import Fits, run_fits


def launch(job: Fits, _: argparse.Namespace) -> None:
    """Become horovodrun, which runs this file again as every rank."""
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    hosts = ["-np", str(job.ranks), "-H", f"localhost:{job.ranks}"]
    os.execv(sys.executable, [sys.executable, horovodrun, "--gloo", *hosts, sys.executable, *sys.argv])


def loop(job: Fits, _: argparse.Namespace) -> None:
    """Run every fit on this process's rank."""
    import horovod.torch as hvd
    import pytorch_lightning as pl
    import torch
    from events import THREADS
    from models import SEED, Classifier, Clock
    from torch.utils.data import DataLoader, DistributedSampler

    hvd.init()
    torch.set_num_threads(THREADS)
    for index, fit in enumerate(job.fits):
        pl.seed_everything(SEED, verbose=False)
        model, clock = Classifier(fit, job.ranks), Clock(job, index)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(model.configure_optimizers(), named_parameters=model.named_parameters())
        sampler: DistributedSampler[Any] = DistributedSampler(
            model.data, hvd.size(), hvd.rank(), shuffle=True, seed=SEED
        )  # as Lightning does
        for number, batch in enumerate(DataLoader(model.data, batch_size=model.batch, sampler=sampler)):
            clock.begin_batch()
            optimizer.zero_grad()
            loss = model.training_step(batch, number)
            loss.backward()
            optimizer.step()
            clock.end_batch(loss.detach())
        clock.write(hvd.rank(), model.parameters(), [optimizer])
    hvd.barrier()
    leave = hvd.rank() != 0
    hvd.shutdown()
    if leave:
        sys.exit(0)  # rank 0 writes the measurements


if __name__ == "__main__":
    run_fits(loop if "HOROVOD_RANK" in os.environ else launch)
