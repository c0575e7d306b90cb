"""Where users of ray_lightning were hurt: the numbers are those of that repository's issues."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.integration.parity import (
    BACKENDS,
    EVERY_BACKEND,
    Boring,
    Tell,
    lines,
    loader,
    note,
    same,
    strategy,
    trainer,
    weights,
)
from tunelight.compat.lightning import CSVLogger, TensorBoardLogger, pl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


@EVERY_BACKEND
@pytest.mark.both
def test_checkpoint_callback(backend: str, tmp_path: Path) -> None:
    """Issue 219: what it knows on the workers, it knows on the driver."""
    kept = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path, filename="{epoch}", monitor="val_loss", save_top_k=2, save_last=True
    )
    model, one = Boring(), trainer(backend, max_epochs=3, callbacks=[kept], enable_checkpointing=True)
    one.fit(model, loader(), loader())
    assert {file.name for file in tmp_path.iterdir()} == {"epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"}
    assert set(kept.best_k_models) == {str(tmp_path / f"epoch={epoch}.ckpt") for epoch in (1, 2)}
    assert kept.best_model_score is not None
    assert kept.best_model_score == pytest.approx(one.callback_metrics["val_loss"])
    last = torch.load(kept.last_model_path, weights_only=True)
    assert same(last["state_dict"], weights(model), atol=0)
    assert (last["epoch"], last["global_step"]) == (2, 12)


@EVERY_BACKEND
def test_best_model_path_exists_on_the_driver(backend: str, tmp_path: Path) -> None:
    """Issue 202, with the callback that Lightning adds by itself."""
    model = Boring()
    one = trainer(backend, default_root_dir=tmp_path, enable_checkpointing=True)
    one.fit(model, loader())
    assert isinstance(one.checkpoint_callback, pl.callbacks.ModelCheckpoint)
    best = Path(one.checkpoint_callback.best_model_path)
    assert best.is_file()
    assert tmp_path in best.parents
    assert same(weights(Boring.load_from_checkpoint(best)), weights(model), atol=0)


class Logging(Boring):
    """Logs every step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("step_loss", loss.detach())
        return loss


@EVERY_BACKEND
@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
@pytest.mark.both
def test_loggers_write_one_version_by_one_rank(kind: Any, backend: str, tmp_path: Path) -> None:
    """Issues 155 and 205: duplicate loggers."""
    one = trainer(backend, logger=kind(tmp_path, name="runs"), log_every_n_steps=1)
    one.fit(Logging(), loader())
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "version_0"
    assert one.log_dir == str(folder)
    if kind is CSVLogger:
        with (folder / "metrics.csv").open() as file:
            steps = [row["step"] for row in csv.DictReader(file) if row["step_loss"]]
        assert steps == ["0", "1", "2", "3"]
    else:
        assert len(list(folder.glob("events.*"))) == 1
    trainer(backend, logger=kind(tmp_path, name="runs"), log_every_n_steps=1).fit(Logging(), loader())
    assert sorted(version.name for version in (tmp_path / "runs").iterdir()) == ["version_0", "version_1"]


@EVERY_BACKEND
def test_several_runs_of_a_trainer_log_into_one_version(backend: str, tmp_path: Path) -> None:
    one = trainer(backend, logger=CSVLogger(tmp_path, name="runs"), log_every_n_steps=1)
    model = Logging()
    one.fit(model, loader(), loader())
    one.test(model, loader(), verbose=False)
    assert [version.name for version in (tmp_path / "runs").iterdir()] == ["version_0"]
    text = (tmp_path / "runs/version_0/metrics.csv").read_text()
    assert "test_loss" in text
    assert "step_loss" in text


@pytest.mark.parametrize("size", [1, 9, 17])
@EVERY_BACKEND
def test_test_does_not_hang_when_ranks_get_unequal_shares(backend: str, size: int) -> None:
    """Issue 132."""
    model = Boring()
    (here,) = trainer("auto").test(model, loader(size), verbose=False)
    (there,) = trainer(strategy(backend, evaluation="exact")).test(model, loader(size), verbose=False)
    assert there == pytest.approx(here)


class Prepared(pl.LightningDataModule):
    """Notes which process prepares and sets up."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def prepare_data(self) -> None:
        note(self.folder, "prepared", os.getpid())
        (self.folder / "data").write_text("32")

    def setup(self, stage: str) -> None:
        note(self.folder, "set up", os.getpid())
        self.size = int((self.folder / "data").read_text())

    def train_dataloader(self) -> Any:
        return loader(self.size)


def pid(one: pl.Trainer, module: pl.LightningModule) -> int:
    return os.getpid()


@EVERY_BACKEND
def test_prepare_data_once(backend: str, tmp_path: Path) -> None:
    """Issue 130: once for the one node that there is, before any rank sets up, and not on the driver."""
    told = Tell(tmp_path, pid)
    trainer(backend, callbacks=[told]).fit(Boring(), datamodule=Prepared(tmp_path))
    ranks = told.heard()
    assert lines(tmp_path, "prepared") == [str(ranks[0])]
    assert lines(tmp_path, "set up") == sorted(map(str, ranks))


class Watching(pl.Callback):
    """Notes the DataLoader's processes at the end of each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        children = sorted(child.pid for child in psutil.Process().children() if child.status() != "zombie")
        note(self.folder, "children", f"{trainer.global_rank} {trainer.current_epoch} {children}")


@BACKENDS
def test_dataloader_workers_live_as_long_as_their_fit(backend: str, tmp_path: Path) -> None:
    """Issue 94: they were killed. Persistent ones stay over the epochs, and end with the fit."""
    one = trainer(backend, max_epochs=2, callbacks=[Watching(tmp_path)])
    model = Boring()
    persistent: Any = {"num_workers": 2, "persistent_workers": True}
    one.fit(model, loader(16, **persistent), loader(16, **persistent))
    told = [line.split(maxsplit=2) for line in lines(tmp_path, "children")]
    assert [(rank, epoch) for rank, epoch, _ in told] == [(rank, epoch) for rank in "01" for epoch in "01"]
    for rank in "01":
        (children,) = {found for number, _, found in told if number == rank}  # the same in both epochs
        pids = [int(number) for number in children.strip("[]").split(",")]
        assert len(pids) == 4
        assert not [number for number in pids if psutil.pid_exists(number) and _runs(number)]
    one.test(model, loader(16, **persistent), verbose=False)


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
