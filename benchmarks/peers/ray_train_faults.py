"""Row d of recovery.py: Ray Train's TorchTrainer (V2), which resumes from the checkpoint of the last epoch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from events import import_ray_train_lightning
from kills import Fault, run_fault


def train_on_worker(config: dict[str, Any]) -> None:
    """Train as this rank. Runs on: each of Ray Train's workers."""
    import ray.train
    from fault_parts import build

    import_ray_train_lightning()
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer

    trainer, model, data = build(
        config["job"],
        callbacks=[RayTrainReportCallback()],  # a checkpoint an epoch
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        devices="auto",
    )
    trainer = prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(model, datamodule=data)
        return
    with checkpoint.as_directory() as folder:
        path = str(Path(folder) / RayTrainReportCallback.CHECKPOINT_NAME)
        trainer.fit(model, datamodule=data, ckpt_path=path, weights_only=False)


def fit(job: Fault, _: argparse.Namespace) -> None:
    """Run one training that survives a fault."""
    import ray
    from ray import train
    from ray.train.torch import TorchTrainer

    ray.init(address="local", num_cpus=job.ranks, log_to_driver=False)
    try:
        TorchTrainer(
            train_on_worker,
            train_loop_config={"job": job},
            scaling_config=train.ScalingConfig(num_workers=job.ranks),
            run_config=train.RunConfig(
                name="recovery",
                storage_path=str(Path(job.folder) / "storage"),
                failure_config=train.FailureConfig(max_failures=1),
            ),
        ).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    run_fault(fit)
