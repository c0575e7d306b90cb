"""What tests of Ray Data train, on workers: digits in Parquet, and notes of who saw which rows."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tunelight as tl
from tests.kit.training import trainer
from tunelight.extras.digits import DigitsClassifier, load_digits

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
    """A classifier that writes down which rows each batch gave it, one file a rank."""

    def on_fit_start(self) -> None:
        self.start = secrets.token_hex(4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels, rows = batch
        place = tl.get_context()
        with Path(place.trial_dir, f"seen-{place.rank}.jsonl").open("a") as file:
            print(json.dumps([self.current_epoch, batch_idx, self.start, rows.tolist()]), file=file)
        return super().training_step((images, labels), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch[:2], batch_idx)


def seen(folder: Path) -> dict[int, list[list[int]]]:
    """Return each epoch's rows, rank by rank; what a later start trained on again counts once."""
    epochs: dict[int, list[list[int]]] = {}
    for file in sorted(folder.glob("seen-*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        kept: dict[int, list[Any]] = {}
        for epoch, index, start, rows in lines:
            batches = kept.setdefault(epoch, [])
            while batches and batches[-1][1] != start and batches[-1][0] >= index:
                batches.pop()
            batches.append((index, start, rows))
        for epoch, batches in kept.items():
            epochs.setdefault(epoch, []).append([row for *_, rows in batches for row in rows])
    return epochs


def data_module(**kwargs: Any) -> tl.RayDataModule:
    return tl.RayDataModule(batch_size=32, collate_fn=to_batch, **kwargs)


def digits(config: dict[str, Any]) -> None:
    """Train on the sweep's datasets, with a checkpoint at every report: one an epoch, or each ``every`` batches."""
    report = tl.TuneReportCheckpointCallback({"loss": "val_loss", "acc": "val_acc"}, on="validation_end")
    model = Seen(lr=config["lr"], hidden=64)
    often = {"val_check_interval": config["every"]} if config.get("every") else {}
    trainer(config.get("epochs", 2), report, num_sanity_val_steps=0, **often).fit(model, datamodule=data_module())
