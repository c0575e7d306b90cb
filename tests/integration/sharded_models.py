"""A program: Hugging Face's GPT-2, BERT, T5 and ViT train with RayShardedStrategy as with DDP, from random weights.

It runs where transformers is installed, and prints the losses of each model and strategy.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader
from transformers import (  # type: ignore[import-not-found]
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import tunelight as tl

BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
MODELS: dict[str, Any] = {
    "GPT-2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=16, n_embd=32, n_layer=2, n_head=4)),
    "BERT": lambda: BertForMaskedLM(BertConfig(vocab_size=200, **BERT)),
    "T5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=200, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ),
    "ViT": lambda: ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, num_labels=4, **BERT)),
}


class Module(pl.LightningModule):
    """Trains a model that computes its loss itself."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        everywhere: Any = self.all_gather(loss.detach())
        self.losses.append(float(everywhere.mean()))
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.model(**batch).loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def batches(name: str) -> DataLoader[Any]:
    words = torch.arange(16 * 12).reshape(16, 12) * 7 % 200
    images = torch.linspace(-1, 1, 16 * 3 * 16 * 16).reshape(16, 3, 16, 16)
    rows: Any = [
        {"pixel_values": image, "labels": torch.tensor(index % 4)}
        if name == "ViT"
        else {"input_ids": words[index], "labels": words[index]}
        for index, image in enumerate(images)
    ]
    return DataLoader(rows, batch_size=2)


def losses(name: str, model: Any, strategy: Any) -> list[float]:
    torch.manual_seed(0)  # for dropout
    trainer = pl.Trainer(
        strategy=strategy, max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module(model)
    trainer.fit(module, batches(name), batches(name))
    return [*module.losses, trainer.callback_metrics["val_loss"].item()]


def main() -> None:
    for name in sys.argv[1:] or MODELS:
        torch.manual_seed(1)
        model = MODELS[name]()
        by_ddp = losses(name, copy.deepcopy(model), tl.RayStrategy(num_workers=2))
        sharded = losses(name, model, tl.RayShardedStrategy(num_workers=2, min_sharded=500))
        worst = max(abs(one - other) for one, other in zip(by_ddp, sharded, strict=True))
        ends = f"{by_ddp[0]:.4f} to {by_ddp[-1]:.4f}"
        print(f"{name}: {ends} in {len(by_ddp)} losses, off by at most {worst:.1e}", flush=True)  # noqa: T201
    tl.shutdown()


if __name__ == "__main__":
    main()
