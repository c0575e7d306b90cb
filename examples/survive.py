"""A sweep that outlives its driver: killed after 5 of 10 trials, resumed by the same command, then extended.

python examples/survive.py                     # kills itself (SIGKILL) after 5 trials
python examples/survive.py                     # the same command: resumes, and prints all 10
python examples/survive.py --num-samples 15    # adds 5
python examples/survive.py --num-samples 15 --uninterrupted   # the same sweep in one go: the same table
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from ray.tune import Callback

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

space = tl.SearchSpace({"lr": tl.loguniform(1e-4, 1e-1), "hidden": tl.choice([32, 64, 128])})


def train(config: dict[str, Any]) -> None:
    """Train one configuration, with a checkpoint at each report. Runs on every worker of the trial's gang."""
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        strategy=tl.RayStrategy(),
        callbacks=[tl.TuneReportCheckpointCallback({"loss": "val_loss", "acc": "val_acc"})],
    )
    trainer.fit(DigitsClassifier(**config), datamodule=DigitsData())


class Accident(Callback):  # type: ignore[misc,unused-ignore]
    """Kills the driver in the middle of a trial, once in a sweep, after ``trials`` others have ended."""

    def __init__(self, trials: int) -> None:
        self.left = trials

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Count a trial. Called by Tune when a trial has ended."""
        self.left -= 1

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Kill the driver at the second report of the next trial."""
        if self.left <= 0 and result["training_iteration"] >= 2:
            print("SIGKILL: run the same command again.", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Start or resume the sweep, and print every trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-samples", type=int, default=10, help="number of trials")
    parser.add_argument("--storage", default="runs", help="parent of the sweep's folder")
    parser.add_argument("--uninterrupted", action="store_true", help="do not kill the driver, to compare")
    args = parser.parse_args()

    name = "uninterrupted" if args.uninterrupted else "survive"
    first = not Path(args.storage, name).exists()
    results = tl.run(
        space,
        train,
        metric="loss",
        num_samples=args.num_samples,
        scheduler="fifo",
        workers=2,
        max_concurrent=1,
        seed=7,
        storage=args.storage,
        name=name,
        resume=True,  # starts the sweep, and later resumes it
        callbacks=[Accident(5)] if first and not args.uninterrupted else [],
    )
    columns = ["trial_id", "state", "best_loss", "last_loss", "epochs", "reports", "config.lr", "config.hidden"]
    print(results.dataframe()[columns].to_string(index=False))


if __name__ == "__main__":
    main()
