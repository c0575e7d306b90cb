"""The peers of recovery.py: tunelight in a sweep and on a driver, Ray Train, and torchrun."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jobs import by_torchrun, fit_by_ray, local_ray, ray_lightning, run_ways
from kills import Fault
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

import tunelight as tl
from tunelight.messages import Resize

SHRINK_AT, GROW_AT = 2, 4
"""The reports after which a trial is to go on with one worker, and with two again."""


class Resizing(FIFOScheduler):
    """Let a trial go on with one worker for a while: what a scheduler that allots workers does."""

    def __init__(self, job: Fault) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray's
        self.job = job

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Ask for another size, before the trial's next step, and always let it go on."""
        number = result["training_iteration"]
        size = {SHRINK_AT: 1, GROW_AT: self.job.ranks}.get(number)
        if size is not None:
            trial.temporary_state.ray_actor.decide.remote(Resize(size))
        if number == GROW_AT:
            self.job.note(number)
        return str(TrialScheduler.CONTINUE)


def sweep(job: Fault, way: str) -> None:
    """Run one trial that survives a fault: of a fixed size, elastic, or resized."""

    def train(_: dict[str, Any]) -> None:
        from fault_parts import build

        report = tl.TuneReportCheckpointCallback({"loss": "val_loss"})
        trainer, model, data = build(job, callbacks=[report], strategy=tl.RayStrategy())
        trainer.fit(model, datamodule=data)

    results = tl.run(
        {"index": tl.choice([0])},
        train,
        metric="loss",
        num_samples=1,
        scheduler=Resizing(job) if way == "resize" else "fifo",
        workers=job.ranks if way == "fixed" else (1, job.ranks),
        address="local",
        storage=job.storage,
        name="recovery",
        seed=7,
        progress=False,
    )
    for trial in results.trials:
        if trial.state != "FINISHED":
            raise RuntimeError(f"the trial ended {trial.state}: {trial.error}")


def driver(job: Fault, _: str) -> None:
    """Run one ``fit`` that survives a fault, from this process."""
    from fault_parts import build

    os.chdir(job.folder)  # where its checkpoints go
    trainer, model, data = build(job, strategy=tl.RayStrategy(num_workers=job.ranks))
    trainer.fit(model, datamodule=data)


def train_on_worker(config: dict[str, Any]) -> None:
    """Train as this rank, from the checkpoint of the last epoch. Runs on: each of Ray Train's workers."""
    import ray.train
    from fault_parts import build

    module, settings = ray_lightning()
    report = module.RayTrainReportCallback()  # a checkpoint an epoch
    trainer, model, data = build(config["job"], callbacks=[report], **settings)
    trainer = module.prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(model, datamodule=data)
        return
    with checkpoint.as_directory() as folder:
        path = str(Path(folder) / report.CHECKPOINT_NAME)
        trainer.fit(model, datamodule=data, ckpt_path=path, weights_only=False)


def ray_train(job: Fault, _: str) -> None:
    """Run one training that survives a fault, by Ray Train's TorchTrainer (V2)."""
    from ray import train

    with local_ray(job.ranks):
        fit_by_ray(job, train_on_worker, {"job": job}, "recovery", failure_config=train.FailureConfig(max_failures=1))


def torchrun(job: Fault) -> None:
    """Train on this process's rank; after a fault all ranks are restarted, from scratch."""
    from fault_parts import build
    from pytorch_lightning.strategies import DDPStrategy

    trainer, model, data = build(job, strategy=DDPStrategy(process_group_backend="gloo"), devices=job.ranks)
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    restarts = ("--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    others = {"ray_train": ray_train, "torchrun": by_torchrun(torchrun, (*restarts, "--rdzv-id", "recovery"))}
    run_ways(Fault, {"fixed": sweep, "elastic": sweep, "resize": sweep, "driver": driver, **others})
