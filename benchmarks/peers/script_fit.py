"""The training of turnaround.py as a script with a command line: rows f and g. It knows nothing of a sweep."""

from __future__ import annotations

import argparse
import gc
import os

import torch.distributed
from workload import Job, train_one


def main() -> None:
    """Train one configuration on the ranks that torchrun, or a sweep, has started."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--hidden", type=int, default=64)
    args = parser.parse_args()
    job = Job.load(args.job)
    config = {"index": args.index, "lr": args.lr, "hidden": args.hidden}
    train_one(job, config, rank=int(os.environ.get("RANK", "0")), strategy="ddp", devices=job.ranks)
    gc.collect()  # the DDP model: freed after its group, it now and then waits for it
    torch.distributed.destroy_process_group()  # left to the interpreter's end, gloo's threads now and then abort it


if __name__ == "__main__":
    main()
