"""The peers of turnaround.py that are not tunelight: torchrun, Optuna, and Ray Train inside Ray Tune."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jobs import by_spawn, by_torchrun, fit_by_ray, local_ray, ray_lightning, run_ways
from workload import Job, train_one


def loop(job: Job) -> None:
    """Train every configuration, one after another, on this process's rank: plain Lightning DDP, no Tune."""
    from tunelight.compat.lightning import DDPStrategy

    for config in job.configs:
        strategy = DDPStrategy(process_group_backend="gloo")
        train_one(job, config, rank=int(os.environ["RANK"]), strategy=strategy, devices=job.ranks)


def script(job: Job, _: str) -> None:
    """Start a new torchrun for every configuration, as an agent starts a sweep's program."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)]
    for config in job.configs:
        given = [f"--{name}={value}" for name, value in config.items()]
        fit = str(Path(__file__).with_name("script_fit.py"))
        subprocess.run([*torchrun, fit, "--job", str(Path(job.folder, "job.json")), *given], check=True)


def optuna(job: Job, _: str) -> None:
    """Run the configurations as one study, one trial at a time; ddp_spawn starts two new processes for each."""
    import optuna

    hidden = sorted({config["hidden"] for config in job.configs})

    def objective(trial: optuna.Trial) -> float:
        config: dict[str, Any] = {
            "index": trial.suggest_int("index", 0, len(job.configs) - 1),
            "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            "hidden": trial.suggest_categorical("hidden", hidden),
        }
        trainer = by_spawn(lambda strategy: train_one(job, config, strategy=strategy, devices=job.ranks))
        return float(trainer.callback_metrics["val_loss"])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(direction="minimize", sampler=optuna.samplers.RandomSampler(seed=7))
    for config in job.configs:
        search.enqueue_trial(config)
    search.optimize(objective, n_trials=len(job.configs))


def train_on_worker(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on: each of Ray Train's workers."""
    import pytorch_lightning as pl
    import ray.train

    class Report(pl.Callback):
        """Report without a checkpoint: Ray's own RayTrainReportCallback writes one an epoch."""

        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if not trainer.sanity_checking:
                metrics = trainer.callback_metrics
                ray.train.report({"loss": metrics["val_loss"].item(), "acc": metrics["val_acc"].item()})

    module, settings = ray_lightning()
    rank = ray.train.get_context().get_world_rank()
    prepare = module.prepare_trainer
    train_one(config["job"], config["trial"], rank=rank, reporters=[Report()], prepare=prepare, **settings)


def ray_train(job: Job, _: str) -> None:
    """Run the configurations as one Tune experiment, one trial at a time, a TorchTrainer in a function trainable."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.schedulers import ASHAScheduler

    def drive(config: dict[str, Any]) -> None:
        callbacks: list[Any] = [TuneReportCallback()]  # of V2; Ray's types still name V1's Callback
        trial = {"job": job, "trial": job.configs[config["index"]]}
        fit_by_ray(job, train_on_worker, trial, f"train-{config['index']}", callbacks=callbacks)

    asha = ASHAScheduler(max_t=job.epochs, grace_period=job.grace_period, reduction_factor=job.reduction_factor)
    # One CPU in name only for the function trainable, which merely waits: Tune refuses to give it none.
    with local_ray(job.ranks + 1):
        tune.Tuner(
            drive,
            param_space={"index": tune.grid_search(list(range(len(job.configs))))},
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=asha, max_concurrent_trials=1),
            run_config=tune.RunConfig(name="turnaround", storage_path=job.storage, verbose=0),
        ).fit()


if __name__ == "__main__":
    run_ways(Job, {"loop": by_torchrun(loop), "script": script, "optuna": optuna, "ray_train": ray_train})
