"""One live sweep for fidelity.py: digits, under a scheduler that it names."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule
from workload import Job, make_configs, run_job, train_one

import tunelight as tl
from tunelight.schedulers import ASHA

HIDDEN = (64, 128, 256)


class Asking(FIFOScheduler):
    """FIFO that is asked about each report, as Ray's schedulers are: what waiting for an answer costs."""


@dataclass(frozen=True)
class Live:
    """One live sweep: ``repeats`` makes an epoch longer."""

    scheduler: str
    workers: int
    trials: int
    epochs: int
    seed: int
    repeats: int
    folder: str

    @classmethod
    def load(cls, path: str | Path) -> Live:
        """Read what fidelity.py wrote."""
        return cls(**json.loads(Path(path).read_text()))

    @property
    def sweep_folder(self) -> Path:
        """Where its record lies."""
        return Path(self.folder) / "storage" / "fidelity"

    def configs(self) -> list[dict[str, Any]]:
        """Return its configurations, which follow from the seed."""
        return make_configs(self.trials, self.seed, HIDDEN)

    def make_scheduler(self) -> Any:
        """Return its scheduler, new."""
        own: dict[str, Any] = {"metric": "loss", "mode": "min"}
        makers: dict[str, Any] = {
            "fifo": lambda: "fifo",
            "asking": Asking,
            "asha": lambda: ASHA(**own, max_t=self.epochs, grace_period=1, reduction_factor=3),
            "asha, later rungs": lambda: ASHA(**own, max_t=self.epochs, grace_period=2, reduction_factor=2),
            "Ray's ASHA": lambda: AsyncHyperBandScheduler(max_t=self.epochs, grace_period=1, reduction_factor=3),
            "median stopping": lambda: MedianStoppingRule(
                time_attr="training_iteration", grace_period=2, min_samples_required=3
            ),
        }
        return makers[self.scheduler]()


def sweep(live: Live, _args: argparse.Namespace) -> None:
    """Run it."""
    job = Job(live.configs(), live.epochs, live.workers, live.repeats, 1, 3, live.folder)
    space = {
        "index": tl.choice(list(range(live.trials))),
        "lr": tl.loguniform(1e-4, 1e-1),
        "hidden": tl.choice(list(HIDDEN)),
    }

    def train(config: dict[str, Any]) -> None:
        report = tl.TuneReportCallback({"loss": "val_loss", "acc": "val_acc"}, on="validation_end")
        train_one(job, dict(config), rank=tl.get_context().rank, reporters=[report], strategy=tl.RayStrategy())

    tl.run(
        space,
        train,
        metric="loss",
        mode="min",
        num_samples=live.trials,
        max_epochs=live.epochs,
        baselines=job.configs,
        scheduler=live.make_scheduler(),
        workers=live.workers,
        max_concurrent=2 // live.workers,
        address="local",
        storage=str(live.sweep_folder.parent),
        name=live.sweep_folder.name,
        seed=live.seed,
        progress=False,
    )


if __name__ == "__main__":
    run_job(sweep, Live.load, lambda _live: [])
