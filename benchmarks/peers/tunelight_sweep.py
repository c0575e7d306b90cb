"""Rows b, c and f of turnaround.py: tunelight, with FIFO or its own ASHA, and a script as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs import run_ways
from workload import Job, train_one

import tunelight as tl
from tunelight.schedulers import ASHA


def sweep(job: Job, way: str) -> None:
    """Run the configurations as one sweep, one trial at a time, Ray's start included."""
    space = {
        "index": tl.choice(list(range(len(job.configs)))),
        "lr": tl.loguniform(1e-4, 1e-1),
        "hidden": tl.choice(sorted({config["hidden"] for config in job.configs})),
    }

    def train(config: dict[str, Any]) -> None:
        report = tl.TuneReportCallback({"loss": "val_loss", "acc": "val_acc"}, on="validation_end")
        rank = tl.get_context().rank
        train_one(job, dict(config), rank=rank, reporters=[report], strategy=tl.RayStrategy())

    asha = ASHA(max_t=job.epochs, grace_period=job.grace_period, reduction_factor=job.reduction_factor)
    code: dict[str, Any] = {"train": train, "metric": "loss"}
    if way == "script":
        script, given = str(Path(__file__).with_name("script_fit.py")), str(Path(job.folder, "job.json"))
        code = {"script": script, "args": ["--job", given], "metric": "val_loss", "checkpoints": None}
    tl.run(
        space,
        **code,
        mode="min",
        num_samples=len(job.configs),
        baselines=job.configs,
        scheduler=asha if way == "asha" else "fifo",
        workers=job.ranks,
        max_concurrent=1,
        address="local",
        storage=job.storage,
        name="turnaround",
        seed=7,
        progress=False,
    )


if __name__ == "__main__":
    run_ways(Job, {"fifo": sweep, "asha": sweep, "script": sweep})
