"""What tests of Ray Data train, on workers: digits in Parquet, and notes of who saw which rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

import tunelight as tl
from tests.integration.training import trainer
from tunelight.digits import DigitsClassifier, load_digits

PARTS = ("train", "val")


def write_digits(folder: Path, files: int = 4) -> dict[str, dict[str, str]]:
    """Write the digits' training and validation images as Parquet; return them as ``datasets=`` of a sweep."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part, data in zip(PARTS, load_digits(0)[:2], strict=True):
        (folder / part).mkdir(parents=True)
        images, labels = (tensor.numpy() for tensor in data.tensors)
        for number, rows in enumerate(np.array_split(np.arange(len(labels)), files)):
            table = pa.table(
                {
                    "row": rows,
                    "image": [image.ravel() for image in images[rows]],
                    "label": labels[rows],
                }
            )
            pq.write_table(table, folder / part / f"{number}.parquet", row_group_size=100)
    return {part: {"parquet": str(folder / part)} for part in PARTS}


def to_batch(rows: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images = np.stack([np.asarray(image, np.float32) for image in rows["image"]]).reshape(-1, 1, 8, 8)
    return torch.tensor(images), torch.tensor(rows["label"]), torch.tensor(rows["row"])


class Seen(DigitsClassifier):
    """A classifier that remembers which rows each epoch gave it, and writes them down, one file a rank."""

    def on_train_epoch_start(self) -> None:
        self.rows: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels, rows = batch
        self.rows += rows.tolist()
        return super().training_step((images, labels), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch[:2], batch_idx)

    def on_train_epoch_end(self) -> None:
        if not hasattr(self, "rows"):
            return  # a restart ends the epoch that the last start has written down
        place = tl.get_context()
        with Path(place.trial_dir, f"seen-{place.rank}.jsonl").open("a") as file:
            print(json.dumps([self.current_epoch, self.rows]), file=file)


def seen(folder: Path) -> dict[int, list[list[int]]]:
    """Return each epoch's rows, rank by rank; of an epoch that was trained twice, the last."""
    epochs: dict[int, list[list[int]]] = {}
    for file in sorted(folder.glob("seen-*.jsonl")):
        last = dict(json.loads(line) for line in file.read_text().splitlines())
        for epoch, rows in last.items():
            epochs.setdefault(epoch, []).append(rows)
    return epochs


def data_module(**kwargs: Any) -> tl.RayDataModule:
    return tl.RayDataModule(batch_size=32, collate_fn=to_batch, **kwargs)


def digits(config: dict[str, Any]) -> None:
    """Train on the sweep's datasets, with a checkpoint at every report."""
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss", "acc": "val_acc"}, on="validation_end")
    model = Seen(lr=config["lr"], hidden=64)
    trainer(config.get("epochs", 2), report, num_sanity_val_steps=0).fit(model, datamodule=data_module())


def plain_accuracy(model: pl.LightningModule, folder: Path) -> float:
    """Return what one process makes of the validation images."""
    images, labels = load_digits(0)[1].tensors
    with torch.no_grad():
        return float((model(images).argmax(-1) == labels).float().mean())
