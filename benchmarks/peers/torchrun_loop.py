"""Row a, the floor: one torchrun pair that loops over the configurations; plain Lightning DDP, no Tune."""

from __future__ import annotations

import argparse
import os
import sys

from fits import Fits
from workload import Job, run_peer, train_one


def launch(job: Job | Fits, _: argparse.Namespace) -> None:
    """Become torchrun, which runs this file again as every rank."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    os.execv(sys.executable, [*torchrun, "--nproc-per-node", str(job.ranks), *sys.argv])


def loop(job: Job, _: argparse.Namespace) -> None:
    """Train every configuration, one after another, on this process's rank."""
    import torch.distributed as dist

    from tunelight.compat.lightning import DDPStrategy

    rank = int(os.environ["RANK"])
    for config in job.configs:
        strategy = DDPStrategy(process_group_backend="gloo")
        train_one(job, config, rank=rank, strategy=strategy, devices=job.ranks)
    dist.destroy_process_group()  # Lightning leaves it alive, which the next trial used
    if rank != 0:
        sys.exit(0)  # rank 0 writes the measurements


if __name__ == "__main__":
    run_peer(loop if "RANK" in os.environ else launch)
