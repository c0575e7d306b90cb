"""Row b: a torchrun pair with Lightning's own DDP, which runs the fits one after another."""

from __future__ import annotations

import argparse
import os
import sys

from fits import Fits, run_fits
from torchrun_loop import launch


def loop(job: Fits, _: argparse.Namespace) -> None:
    """Run every fit on this process's rank."""
    import torch.distributed as dist
    from models import build
    from pytorch_lightning.strategies import DDPStrategy

    for index in range(len(job.fits)):
        trainer, model = build(job, index, strategy=DDPStrategy(process_group_backend="gloo"), devices=job.ranks)
        trainer.fit(model)
    dist.destroy_process_group()  # Lightning leaves it alive, which the next fit used
    if os.environ["RANK"] != "0":
        sys.exit(0)  # rank 0 writes the measurements


if __name__ == "__main__":
    run_fits(loop if "RANK" in os.environ else launch)
