"""A library that trains with ``lightning.pytorch`` by itself, as some do; nothing in a train function shows it."""

from __future__ import annotations


def fit() -> int:
    """Train a model, and return how many steps that took."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    trainer = Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(BoringModel())
    return int(trainer.global_step)
