"""One live sweep for fidelity.py: digits, under a scheduler that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import Work, run_ways
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule
from workload import Job, make_configs, train_one

import tunelight as tl
from tunelight.schedulers import ASHA

HIDDEN = (64, 128, 256)


class Asking(FIFOScheduler):
    """FIFO that is asked about each report, as Ray's schedulers are: what waiting for an answer costs."""


@dataclass(frozen=True, kw_only=True)
class Live(Work):
    """One live sweep: ``repeats`` makes an epoch longer."""

    scheduler: str
    trials: int
    epochs: int
    seed: int
    repeats: int

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


def sweep(live: Live, _: str) -> None:
    """Run it."""
    job = Job(
        folder=live.folder, ranks=live.ranks, configs=live.configs(), epochs=live.epochs, repeats=live.repeats,
        grace_period=1, reduction_factor=3,
    )  # fmt: skip
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
        workers=live.ranks,
        max_concurrent=2 // live.ranks,
        address="local",
        storage=str(live.sweep_folder.parent),
        name=live.sweep_folder.name,
        seed=live.seed,
        progress=False,
    )


if __name__ == "__main__":
    run_ways(Live, {"sweep": sweep})
