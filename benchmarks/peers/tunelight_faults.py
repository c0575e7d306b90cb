"""Rows a, b, c and f of recovery.py: tunelight in a sweep, of a fixed size, elastic or resized, and on a driver."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from kills import Fault, run_fault
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


def sweep(job: Fault, args: argparse.Namespace) -> None:
    """Run one trial that survives a fault, as a sweep."""

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
        scheduler=Resizing(job) if args.way == "resize" else "fifo",
        workers=job.ranks if args.way == "fixed" else (1, job.ranks),
        address="local",
        storage=str(Path(job.folder) / "storage"),
        name="recovery",
        seed=7,
        progress=False,
    )
    for trial in results.trials:
        if trial.state != "FINISHED":
            raise RuntimeError(f"the trial ended {trial.state}: {trial.error}")


def fit(job: Fault, args: argparse.Namespace) -> None:
    """Run one ``fit`` that survives a fault, from this process."""
    if args.way != "driver":
        sweep(job, args)
        return
    from fault_parts import build

    os.chdir(job.folder)  # where its checkpoints go
    trainer, model, data = build(job, strategy=tl.RayStrategy(num_workers=job.ranks))
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--way", choices=["fixed", "elastic", "resize", "driver"], required=True)
    run_fault(fit, options)
