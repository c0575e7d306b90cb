"""The Trainer of Hugging Face's transformers on a gang: a small BERT from a config. 8 trials of two workers.

pip install -r examples/without_lightning/requirements.txt
python examples/without_lightning/transformers_trainer.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import tunelight as tl

EPOCHS = 4


class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Texts of 16 words out of 64; the label says whether words of the first half are in the majority."""

    def __init__(self, texts: int, seed: int) -> None:
        self.words = torch.randint(64, (texts, 16), generator=torch.Generator().manual_seed(seed))
        self.labels = ((self.words < 32).sum(1) > 8).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def train(config: dict[str, Any]) -> None:
    """Train one configuration. Runs on every worker of the trial's gang."""
    from transformers import (  # type: ignore[import-not-found]  # in this example's requirements
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainingArguments,
    )

    from tunelight.extras.transformers import TuneReportCallback

    shape = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    arguments = TrainingArguments(
        output_dir=str(Path(tl.get_context().trial_dir, "trainer")),
        learning_rate=config["lr"],
        warmup_steps=config["warmup"],
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,  # the trial keeps copies
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(shape),
        args=arguments,
        train_dataset=Words(1024, seed=0),
        eval_dataset=Words(256, seed=1),
        callbacks=[TuneReportCallback({"loss": "eval_loss"})],
    )
    trainer.train(resume_from_checkpoint=tl.get_checkpoint_path())


def main() -> None:
    """Run the sweep and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-samples", type=int, default=8, help="number of trials")
    parser.add_argument("--storage", default="runs", help="parent of the sweep's folder")
    args = parser.parse_args()
    space = {"lr": tl.loguniform(1e-5, 1e-2), "warmup": tl.choice([0, 20])}
    results = tl.run(
        space, train, metric="loss", num_samples=args.num_samples, scheduler="asha", max_epochs=EPOCHS, workers=2,
        seed=7, storage=args.storage,
    )  # fmt: skip
    print(f"Best configuration: {results.best_config}")


if __name__ == "__main__":
    main()
