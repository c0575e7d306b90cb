"""Row e of recovery.py: torchrun with a c10d rendezvous, which restarts all ranks, and training from scratch."""

from __future__ import annotations

import argparse
import os
import sys

from kills import Fault, run_fault


def launch(job: Fault, _: argparse.Namespace) -> None:
    """Become torchrun, which runs this file again as every rank, and once more after each fault."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "3", "--nproc-per-node"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "recovery"]
    os.execv(sys.executable, [*torchrun, str(job.ranks), *rendezvous, *sys.argv])


def fit(job: Fault, _: argparse.Namespace) -> None:
    """Train on this process's rank."""
    import torch.distributed as dist
    from fault_parts import build
    from pytorch_lightning.strategies import DDPStrategy

    trainer, model, data = build(job, strategy=DDPStrategy(process_group_backend="gloo"), devices=job.ranks)
    trainer.fit(model, datamodule=data)
    dist.destroy_process_group()
    if os.environ["RANK"] != "0":
        sys.exit(0)  # rank 0 writes the measurements


if __name__ == "__main__":
    run_fault(fit if "RANK" in os.environ else launch)
