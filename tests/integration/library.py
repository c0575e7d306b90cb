"""A library that trains with the other Lightning by itself, as some do; nothing in a train function shows it."""

from __future__ import annotations

from importlib import import_module

from tests import flavours


def fit() -> int:
    """Train a model, and return how many steps that took."""
    other = import_module(flavours.other())
    boring = import_module(f"{flavours.other()}.demos.boring_classes")
    trainer = other.Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(boring.BoringModel())
    return int(trainer.global_step)
