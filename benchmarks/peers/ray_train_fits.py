"""Row f: Ray Train's TorchTrainer (V2) with its own Lightning strategy, a new TorchTrainer for every fit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from events import import_ray_train_lightning
from fits import Fits, run_fits, timed


def train_on_worker(config: dict[str, Any]) -> None:
    """Run one fit as this rank. Runs on: each of Ray Train's workers."""
    from models import build

    import_ray_train_lightning()
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    trainer, model = build(
        config["job"],
        config["index"],
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        devices="auto",
    )
    prepare_trainer(trainer).fit(model)


def fit_all(job: Fits, _: argparse.Namespace) -> None:
    """Run every fit from this process."""
    import ray
    from ray import train
    from ray.train.torch import TorchTrainer

    ray.init(address="local", num_cpus=job.ranks, log_to_driver=False)
    try:
        for index in range(len(job.fits)):
            trainer = TorchTrainer(
                train_on_worker,
                train_loop_config={"job": job, "index": index},
                scaling_config=train.ScalingConfig(num_workers=job.ranks),
                run_config=train.RunConfig(name=f"fit-{index}", storage_path=str(Path(job.folder) / "storage")),
            )
            with timed(job, index):
                trainer.fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    run_fits(fit_all)
