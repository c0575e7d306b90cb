"""Classify short reviews with transformers' DistilBERT: a sweep, the best of its models, and a fit without a sweep.

pip install -e . -r examples/packages/transformers/requirements.txt
python examples/packages/transformers/reviews.py

The model starts from random weights, and the reviews are generated: nothing is downloaded.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from torch.utils.data import DataLoader
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

import tunelight as tl

GOOD = ["good", "great", "wonderful", "charming", "brilliant", "moving"]
BAD = ["bad", "dull", "terrible", "boring", "awful", "tedious"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
THINGS = ["film", "plot", "acting", "music", "ending", "dialogue"]


def reviews(count: int, seed: int) -> list[tuple[str, int]]:
    """Return generated reviews, each with 1 for praise and 0 for blame; a "not" turns a word's meaning round."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        label = int(draw.integers(2))
        negated = draw.random() < 0.4
        word = draw.choice(GOOD if label != negated else BAD)
        first, second = draw.choice(THINGS, 2, replace=False)
        opening = draw.choice(["", "i saw it twice and ", f"leaving the {second} aside , "])
        found.append((f"{opening}the {first} was {'not ' if negated else ''}{word}", label))
    return found


class Reviews(pl.LightningDataModule):
    """Reviews for training, validation and test, as token ids."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Generate the reviews, and make a tokenizer that knows their words."""
        self.train, self.val, self.test = reviews(1024, 1), reviews(256, 2), reviews(256, 3)
        words = Tokenizer(WordLevel(unk_token=SPECIAL["unk_token"]))
        words.pre_tokenizer = Whitespace()
        trainer = WordLevelTrainer(special_tokens=list(SPECIAL.values()))
        words.train_from_iterator((text for text, _ in self.train), trainer)
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)

    def collate(self, batch: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        """Return what the model takes: input_ids, attention_mask and labels."""
        texts, labels = zip(*batch, strict=True)
        return {**self.tokenizer(list(texts), padding=True, return_tensors="pt"), "labels": torch.tensor(labels)}

    def loader(self, data: list[tuple[str, int]], shuffle: bool = False) -> DataLoader[Any]:
        """Return batches of reviews."""
        return DataLoader(data, batch_size=self.batch_size, shuffle=shuffle, collate_fn=self.collate)  # type: ignore[arg-type]

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the batches to train on."""
        return self.loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the batches that the sweep judges by."""
        return self.loader(self.val)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the batches that the sweep never saw."""
        return self.loader(self.test)

    predict_dataloader = test_dataloader


class Classifier(pl.LightningModule):
    """A small DistilBERT that tells praise from blame."""

    def __init__(self, lr: float = 1e-3, layers: int = 1, heads: int = 2, dim: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        config = DistilBertConfig(
            vocab_size=64, max_position_embeddings=32, n_layers=layers, n_heads=heads, dim=dim, hidden_dim=4 * dim,
            dropout=dropout, seq_classif_dropout=dropout, num_labels=2,
        )  # fmt: skip
        self.model = DistilBertForSequenceClassification(config)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """Log the loss and the share of right answers."""
        self._judge(batch, "val")

    def test_step(self, batch: dict[str, torch.Tensor]) -> None:
        """Log the same for the test reviews."""
        self._judge(batch, "test")

    def _judge(self, batch: dict[str, torch.Tensor], stage: str) -> None:
        output = self.model(**batch)
        right = (output.logits.argmax(-1) == batch["labels"]).float().mean()
        self.log_dict({f"{stage}_loss": output.loss, f"{stage}_acc": right}, sync_dist=True)

    def predict_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return 1 for praise and 0 for blame."""
        answers: torch.Tensor = self.model(**batch).logits.argmax(-1)
        return answers

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def main() -> None:
    """Run the sweep, ask its best model, then train that model on without a sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", default="runs")
    args = parser.parse_args()

    space = {
        "model.lr": tl.loguniform(3e-4, 4e-3),
        "model.dim": tl.choice([32, 64]),
        "model.layers": tl.choice([1, 2]),
        "model.dropout": tl.uniform(0, 0.3),
    }
    results = tl.run(
        space, model=Classifier, data=Reviews, metric="val_loss", max_epochs=8, num_samples=8, workers=2, seed=1,
        scheduler={"name": "asha", "grace_period": 4},  # no configuration learns anything in its first three epochs
        trainer_args={"accelerator": "cpu"}, storage=args.storage,
    )  # fmt: skip
    print(results.dataframe().to_string())
    print(f"Best: {results.best_config}")

    # The winner, in this process.
    winner, data = results.best.load_model().eval(), Reviews()
    data.setup("test")
    said = ["the film was not boring", "i saw it twice and the music was awful"]
    batch = data.tokenizer(said, padding=True, return_tensors="pt")
    with torch.inference_mode():
        answers = winner.model(**batch).logits.argmax(-1).tolist()
    for text, answer in zip(said, answers, strict=True):
        print(f"{text!r} is {'praise' if answer else 'blame'}")

    # Trained on, on two workers and without a sweep.
    pl.seed_everything(1)
    with tl.RayStrategy(num_workers=2) as strategy:
        trainer = pl.Trainer(
            max_epochs=4, accelerator="cpu", strategy=strategy, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(winner.train(), datamodule=data)
        accuracy = trainer.test(winner, datamodule=data, verbose=False)[0]["test_acc"]
        predicted = torch.cat(trainer.predict(winner, datamodule=data))  # type: ignore[arg-type]
    right = (predicted == torch.tensor([label for _, label in data.test])).float().mean()
    print(f"Accuracy on {len(data.test)} test reviews: {accuracy:.3f} by test, {right:.3f} by predict")


if __name__ == "__main__":
    main()
