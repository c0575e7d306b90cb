"""A fit on a gang of its own: its worker is killed, its driver is interrupted, its driver is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import tunelight as tl
from tests.integration.test_strategies import trainer
from tests.kit.training import Line, LineData
from tunelight.compat.lightning import pl
from tunelight.extras.standalone import driver


class Doomed(Line):
    """Its last rank dies once, in the middle of an epoch."""

    def __init__(self, mark: Path) -> None:
        super().__init__(0.05)
        self.mark = mark

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        last = self.global_rank == self.trainer.world_size - 1
        if self.current_epoch == 3 and batch_idx == 1 and last and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def fitted(kind: Any, mark: Path, workers: Any = 2) -> tuple[pl.Trainer, Doomed]:
    torch.manual_seed(3)
    one, model = trainer(kind(num_workers=workers), max_epochs=5, default_root_dir=mark.parent), Doomed(mark)
    one.fit(model, datamodule=LineData())
    return one, model


@pytest.mark.usefixtures("warm_gangs")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        (tl.RayStrategy, 2),
        (tl.RayStrategy, (1, 2)),
        pytest.param(tl.HorovodRayStrategy, 2, marks=pytest.mark.slow),
        pytest.param(tl.RayShardedStrategy, 2, marks=pytest.mark.slow),
    ],
)
def test_a_fit_that_loses_a_worker_ends_as_if_it_had_not(kind, workers, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(driver, "SAFE_EVERY_S", 0.0)
    survived, model = fitted(kind, tmp_path / "dead", workers)
    assert (tmp_path / "dead").exists()
    said = capfd.readouterr().err
    assert "tunelight: failed on rank 1 " in said
    assert "going on from epoch " in said
    assert ("goes on with 1 workers" in said) == (workers != 2)
    (tmp_path / "alive").touch()
    undisturbed, other = fitted(kind, tmp_path / "alive", workers)
    assert survived.global_step == undisturbed.global_step == 20
    exact = kind is tl.RayStrategy and workers == 2
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0 if exact else 1e-5)
    assert not (tmp_path / ".tunelight").exists()
