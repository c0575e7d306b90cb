"""An ASHA sweep over scikit-learn's digits: 20 trials, each training on two DDP workers.

python examples/digits_asha.py
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as pl

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

space = tl.SearchSpace({"lr": tl.loguniform(1e-4, 1e-1), "hidden": tl.choice([32, 64, 128])})


def train(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on every worker of the trial's gang."""
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        strategy=tl.RayStrategy(),  # joins the gang of the trial
        callbacks=[tl.TuneReportCheckpointCallback({"loss": "val_loss", "acc": "val_acc"}, on="validation_end")],
    )
    trainer.fit(DigitsClassifier(**config), datamodule=DigitsData())


def main() -> None:
    """Run the sweep and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-samples", type=int, default=20, help="number of trials")
    parser.add_argument("--storage", default="runs", help="parent of the sweep's folder")
    parser.add_argument("--name", help="the sweep's name: the same command resumes it (default: a new one)")
    parser.add_argument("--export", default="best.yaml", help="file for the best configuration")
    args = parser.parse_args()

    results = tl.run(
        space,
        train,
        metric="loss",
        mode="min",
        num_samples=args.num_samples,
        scheduler="asha",
        workers=2,
        seed=7,
        storage=args.storage,
        name=args.name,
        resume=args.name is not None,
    )
    print(f"Best configuration: {results.best_config}")
    print(f"Its accuracy: {results.best.metrics['acc']:.4f}")
    results.export_best(args.export)
    print(f"Written to {args.export}")


if __name__ == "__main__":
    main()
