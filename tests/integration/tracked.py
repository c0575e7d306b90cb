"""A program: eight trials on one gang of two workers log to W&B, offline, and to MLflow with a database; one fails.

It runs where both are installed, and prints a line for each way of logging: the trials' states, the number of gangs,
and the runs that the tracker has.
"""

from __future__ import annotations

import collections
import json
import os
import sys
from pathlib import Path
from typing import Any

import mlflow  # type: ignore[import-not-found,unused-ignore]
import pytorch_lightning as pl
import torch
import wandb  # type: ignore[import-not-found,unused-ignore]
from mlflow.tracking import MlflowClient  # type: ignore[import-not-found,unused-ignore]
from pytorch_lightning.loggers import MLFlowLogger, WandbLogger
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(config: dict[str, Any]) -> None:
    """Log one trial in one of four ways."""
    sys.stdout.write(f"process {os.getpid()}\n")
    way, folder = config["way"], config["folder"]
    context, store = tl.get_context(), f"sqlite:///{folder}/runs.db"
    if way.endswith("Logger"):
        logger = WandbLogger(project="p", save_dir=folder) if way == "WandbLogger" else MLFlowLogger(tracking_uri=store)
        data = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=4)
        pl.Trainer(
            max_epochs=1, strategy=tl.RayStrategy(), logger=logger, callbacks=[tl.TuneReportCallback()],
            enable_model_summary=False, enable_checkpointing=False, enable_progress_bar=False,
        ).fit(Net(), data, data)  # fmt: skip
    else:
        if way == "wandb" and context.rank == 0:
            wandb.init(project="p", dir=folder).log({"loss": 1.0})
        elif way == "mlflow" and context.rank == 0:
            mlflow.set_tracking_uri(store)
            mlflow.start_run()
            mlflow.log_metric("loss", 1.0)
        tl.report({"loss": 1.0})
    if config["fails"]:
        raise ZeroDivisionError("on purpose")


def runs(way: str, folder: Path) -> dict[str, int]:
    """Return how many runs the tracker has, by their status; those of W&B count where they hold data."""
    if way.lower().startswith("wandb"):
        files = folder.glob("wandb/offline-run-*/run-*.wandb")
        return {"with data": sum(file.stat().st_size > 1000 for file in files)}
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/runs.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return dict(collections.Counter(run.info.status for run in client.search_runs(ids)))


if __name__ == "__main__":
    for way in ("WandbLogger", "wandb", "MLFlowLogger", "mlflow"):
        folder = Path(sys.argv[1], way)
        folder.mkdir()
        configs = [{"way": way, "folder": str(folder), "fails": number == 3} for number in range(8)]
        results = tl.run(
            {"way": way, "folder": str(folder), "fails": tl.choice([False, True])}, train, metric="loss", mode="min",
            num_samples=8, baselines=configs, workers=2, max_concurrent=1, scheduler="fifo", storage=folder, name="s",
            progress=False,
        )  # fmt: skip
        logs = [path.read_text() for path in folder.glob("s/trial_*/log.txt")]
        gangs = {tuple(sorted(line.split()[-1] for line in text.splitlines() if "process" in line)) for text in logs}
        states = [trial.state for trial in results]
        found = {"way": way, "states": states, "gangs": len(gangs), "runs": runs(way, folder)}
        sys.stdout.write(f"RESULT {json.dumps(found)}\n")
