"""tune_up on real gangs: what is measured, what stands in the way, and that nothing is left behind."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tunelight as tl
from tests.kit.training import Line
from tunelight.compat.lightning import pl

pytestmark = pytest.mark.timeout(180)


class Net(Line):
    """A network with all that a sweep's model may bring: a plateau scheduler, validation, hyperparameters."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


class Slow(torch.utils.data.Dataset[Any]):
    """Samples that wait for a disk."""

    def __init__(self, read_s: float) -> None:
        self.read_s = read_s

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.read_s)
        return torch.ones(4), torch.ones(1)


class Data(pl.LightningDataModule):
    """256 samples for training, 64 for validation."""

    def __init__(self, batch_size: int = 16, num_workers: int = 0, read_s: float = 0.0) -> None:
        super().__init__()
        self.batch_size, self.num_workers, self.read_s = batch_size, num_workers, read_s

    def train_dataloader(self) -> Any:
        return DataLoader(
            Slow(self.read_s), self.batch_size, num_workers=self.num_workers, persistent_workers=self.num_workers > 0
        )

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), self.batch_size)


class Fixed(pl.LightningDataModule):
    """Data of which nothing can be varied."""

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), 8)


def tuned(model: Any = Net, data: Any = Data, fixed: dict[str, Any] | None = None, **more: Any) -> Any:
    space = {"model.lr": tl.loguniform(1e-4, 1e-2), **{key: tl.choice([value]) for key, value in (fixed or {}).items()}}
    few = {"try_workers": [1, 2], "try_cpus": [1], "try_loader_workers": [0]}
    settings = {"metric": "val_loss", "max_epochs": 2, "num_samples": 4, "scheduler": "fifo", "seed": 1}
    return tl.tune_up(space, model=model, data=data, **{**few, "budget": 30.0, **settings, **more})


def test_settings_are_measured_alone_and_together_and_a_slow_loader_is_named_and_gets_workers(ray4):
    result = tuned(fixed={"data.read_s": 5e-3}, try_loader_workers=[0, 2])
    assert {setting.gang for setting in result.measured} == {(1, 1), (2, 1)}
    assert not result.failed
    assert result.global_batch == 16
    for figures in result.measured.values():
        low, rate, high = figures.rates
        assert 0 < low <= rate <= high
    assert {setting.workers: at_once for setting, (at_once, _) in result.together.items()} == {1: 4, 2: 2}
    assert result.together[result.best][1] == max(speed for _, speed in result.together.values())
    assert result.asdict()["settings"]["workers"] == result.best.workers
    alone = next(figures for one, figures in result.measured.items() if (one.workers, one.loader_workers) == (1, 0))
    assert alone.data_share > 0.8
    assert result.fastest.loader_workers == 2
    assert result.settings(result.fastest)["space"]["data.num_workers"] == 2


def test_what_cannot_be_varied_and_what_takes_no_part_is_named(ray4):
    stop = {"class_path": f"{pl.__name__}.callbacks.EarlyStopping", "init_args": {"monitor": "val_loss"}}
    limits = {"callbacks": [stop], "max_steps": 1, "fast_dev_run": True}  # of a whole training
    result = tuned(data=Fixed, workers=2, trainer_args=limits)
    assert {setting.workers for setting in result.measured} == {2}
    assert "the DataLoader's workers were not varied: give data an argument num_workers" in result.notes
    assert "workers were not varied: give data an argument batch_size" in result.notes
    assert result.global_batch == 16
    assert "callbacks that take no part in a step were left out: EarlyStopping" in result.notes
