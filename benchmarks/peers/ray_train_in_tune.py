"""Row e: Ray Train (V2) inside Ray Tune, with a TorchTrainer in a function trainable, under Ray's ASHA."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from events import import_ray_train_lightning
from workload import Job, run_peer, train_one


def train_on_worker(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on: each of Ray Train's workers."""
    import pytorch_lightning as pl
    import ray.train

    import_ray_train_lightning()
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    class Report(pl.Callback):
        """Report without a checkpoint: Ray's own RayTrainReportCallback writes one an epoch."""

        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if not trainer.sanity_checking:
                metrics = trainer.callback_metrics
                ray.train.report({"loss": metrics["val_loss"].item(), "acc": metrics["val_acc"].item()})

    train_one(
        config["job"],
        config["trial"],
        rank=ray.train.get_context().get_world_rank(),
        reporters=[Report()],
        prepare=prepare_trainer,
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        devices="auto",
    )


def sweep(job: Job, _: argparse.Namespace) -> None:
    """Run the configurations as one Tune experiment, one trial at a time, Ray's start included."""
    import ray
    from ray import train, tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.schedulers import ASHAScheduler

    storage = str(Path(job.folder) / "storage")

    def drive(config: dict[str, Any]) -> None:
        callbacks: list[Any] = [TuneReportCallback()]  # of V2; Ray's types still name V1's Callback
        TorchTrainer(
            train_on_worker,
            train_loop_config={"job": job, "trial": job.configs[config["index"]]},
            scaling_config=train.ScalingConfig(num_workers=job.ranks),
            run_config=train.RunConfig(name=f"train-{config['index']}", storage_path=storage, callbacks=callbacks),
        ).fit()

    # One CPU in name only for the function trainable, which merely waits: Tune refuses to give it none.
    ray.init(address="local", num_cpus=job.ranks + 1, log_to_driver=False)
    try:
        tune.Tuner(
            drive,
            param_space={"index": tune.grid_search(list(range(len(job.configs))))},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                scheduler=ASHAScheduler(
                    max_t=job.epochs, grace_period=job.grace_period, reduction_factor=job.reduction_factor
                ),
                max_concurrent_trials=1,
            ),
            run_config=tune.RunConfig(name="turnaround", storage_path=storage, verbose=0),
        ).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    run_peer(sweep)
