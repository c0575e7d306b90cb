"""One Trainer on several workers, without a sweep: fit, test and predict on the same warm gang.

python examples/digits_standalone.py
python examples/digits_standalone.py --strategy horovod
"""

from __future__ import annotations

import argparse
import time

import pytorch_lightning as pl
import torch

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

STRATEGIES = {"ddp": tl.RayStrategy, "horovod": tl.HorovodRayStrategy, "sharded": tl.RayShardedStrategy}


def main() -> None:
    """Train, and show that weights and metrics are back in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    pl.seed_everything(7, workers=True)
    model, data = DigitsClassifier(lr=2e-2, hidden=128), DigitsData()
    best = pl.callbacks.ModelCheckpoint(monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        strategy=STRATEGIES[args.strategy](num_workers=args.workers),
        callbacks=[best],
        default_root_dir="runs",
    )
    for number in (1, 2):
        began = time.monotonic()
        trainer.fit_loop.max_epochs = number * args.epochs
        trainer.fit(model, datamodule=data)
        print(f"fit {number}: {time.monotonic() - began:.1f} s")
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
    print(f"Checkpoint: {best.best_model_path}")

    accuracy = trainer.test(model, datamodule=data)[0]["test_acc"]
    digits = torch.cat(trainer.predict(model, datamodule=data))  # type: ignore[arg-type]  # a list with one tensor for each batch
    labels = data.test.tensors[1] if hasattr(data, "test") else _labels(data)
    print(f"Accuracy: {accuracy:.4f} by test, {(digits == labels).float().mean():.4f} by predict")


def _labels(data: DigitsData) -> torch.Tensor:
    """Return the test labels: ``setup`` has run on the workers only."""
    data.setup()
    labels: torch.Tensor = data.test.tensors[1]
    return labels


if __name__ == "__main__":
    main()
