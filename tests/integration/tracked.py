"""A program: eight trials on one gang of two workers log to experiment trackers, which are asked for their runs.

By Lightning's loggers for W&B, offline, and MLflow with a database, in one Trainer. Two trials are stopped, one fails,
and one loses its rank 0 and is resumed. Usage: tracked.py FOLDER. It prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import MLFlowLogger, WandbLogger
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl

EPOCHS = 4
# A loss falls from its score by 1 an epoch: the two with high ones are stopped after their first.
SCORES = {"a": 7.0, "worse": 90.0, "b": 6.0, "fails": 5.0, "worst": 91.0, "c": 4.0, "killed": 3.0, "d": 2.0}


def misbehave(config: dict[str, Any], epoch: int) -> None:
    """Fail, or lose rank 0 at its first start, in the third epoch."""
    context = tl.get_context()
    if epoch == 2 and config["score"] == SCORES["fails"]:
        raise ZeroDivisionError("on purpose")
    marker = Path(context.trial_dir, "killed")
    if epoch == 2 and config["score"] == SCORES["killed"] and context.rank == 0 and not marker.exists():
        marker.touch()
        time.sleep(1.5)  # W&B writes what it was told every second
        os.kill(os.getpid(), signal.SIGKILL)


class Net(pl.LightningModule):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.layer = torch.nn.Linear(1, 1)

    def on_train_epoch_start(self) -> None:
        misbehave(self.config, self.current_epoch)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", float(self.config["score"] - self.current_epoch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(config: dict[str, Any]) -> None:
    """Train one trial, which knows nothing of its runs."""
    sys.stdout.write(f"process {os.getpid()}\n")
    folder = config["folder"]
    loggers = [WandbLogger(project="p", save_dir=folder), MLFlowLogger(tracking_uri=f"sqlite:///{folder}/runs.db")]
    data = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=4)
    pl.Trainer(
        max_epochs=EPOCHS, strategy=tl.RayStrategy(), logger=loggers, callbacks=[tl.TuneReportCheckpointCallback()],
        enable_model_summary=False, enable_checkpointing=False, enable_progress_bar=False, log_every_n_steps=1,
    ).fit(Net(config), data, data)  # fmt: skip


def records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run: protobuf messages in LevelDB's log format, with blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found,attr-defined,unused-ignore]

    data, place, text = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := -place % 32768) and left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        text += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            yield Record.FromString(text)
            text = b""


def of_wandb(folder: Path) -> dict[str, Any]:
    runs: dict[str, Any] = defaultdict(lambda: {"parts": 0, "state": "crashed"})
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        run: Any = None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run" and run is None:
                run = runs[record.run.run_id]
                run["parts"] += 1
                run |= {"name": record.run.display_name, "group": record.run.run_group, "state": "crashed"}
            elif kind in {"history", "summary"}:
                items = record.history.item if kind == "history" else record.summary.update
                for item in items:
                    if (item.key or ".".join(item.nested_key)) == "loss" and kind == "history":
                        run["last"] = json.loads(item.value_json)
                    elif item.key == "tunelight.state":
                        run["told"] = json.loads(item.value_json)
            elif kind == "config":
                for item in record.config.update:
                    run["config"] = [*run.get("config", []), item.key or ".".join(item.nested_key)]
            elif kind == "exit":
                run["state"] = "failed" if record.exit.exit_code else "finished"
    for run in runs.values():
        run["config"] = "score" in run.get("config", [])
    return {run["name"]: run for run in runs.values()}


def of_mlflow(folder: Path) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient  # type: ignore[import-not-found,unused-ignore]

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/runs.db")
    experiments = {one.experiment_id: one.name for one in client.search_experiments()}
    return {
        run.info.run_name: {
            "state": run.info.status, "last": run.data.metrics["loss"], "group": experiments[run.info.experiment_id],
            "config": "score" in run.data.params,
            "steps": [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")],
        }
        for run in client.search_runs([*experiments])
    }  # fmt: skip


READERS = {"W&B": of_wandb, "MLflow": of_mlflow}


def sweep(folder: Path) -> dict[str, Any]:
    configs = [{"folder": str(folder), "score": score} for score in SCORES.values()]
    results = tl.run(
        {"folder": str(folder), "score": tl.uniform(0, 100)}, train, metric="loss", mode="min",
        num_samples=8, baselines=configs, workers=2, max_concurrent=1, storage=folder, name="s", progress=False,
        scheduler={"name": "asha", "max_t": EPOCHS, "grace_period": 1, "reduction_factor": 2},
        checkpoints=tl.Checkpoints(share=1.0),
    )  # fmt: skip
    logs = [path.read_text() for path in sorted(folder.glob("s/trial_*/log.txt"))]
    processes = {line.split()[-1] for text in logs for line in text.splitlines() if "process " in line}
    ended = [(trial.state, trial.history[-1]["loss"]) for trial in results]
    return {
        "trials": dict(zip((f"s-{trial.id}" for trial in results), ended, strict=True)),
        "processes": len(processes), "runs": {name: read(folder) for name, read in READERS.items()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(f"RESULT {json.dumps(sweep(Path(sys.argv[1])))}\n")
