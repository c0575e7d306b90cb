"""The launcher inside a worker, under Lightning's own Trainer: from which checkpoint a fit goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.fakes import MemoryControl
from tunelight.compat.lightning import pl
from tunelight.lightning.launcher import GangLauncher
from tunelight.messages import CheckpointInfo, Place
from tunelight.session import session
from tunelight.session.mailbox import Mailbox
from tunelight.session.task import Task


class Counting(pl.LightningModule):
    """Counts the epochs that it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.epochs: list[int] = []

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch[0]).sum()

    def on_train_epoch_start(self) -> None:
        self.epochs.append(self.current_epoch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(epochs: int) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip


def trained(path: Path, epochs: int) -> Path:
    one = trainer(epochs)
    one.fit(Counting(), DataLoader(TensorDataset(torch.ones(1, 1))))
    one.save_checkpoint(path)
    return path


Fit = Callable[..., list[int]]


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fit:
    """Return a function that fits three epochs in a worker whose trial has trained one or two, as it is told."""

    def run(
        resume: CheckpointInfo | None, given: Path | None, *, fit: int = 0, notes: list[str] | None = None, **task: Any
    ) -> list[int]:
        told = Task(
            "00000", str(tmp_path), {}, b"", 1, ".", resume=resume, number=resume.number if resume else 0, **task
        )
        here = session.Session(told, Place(0, 1, 0, 1, 0, "x"), MemoryControl(), lambda _: None, Mailbox(None))
        for number in range(fit):
            here.boundary.begin_fit(f"fit {number}")
        if notes is not None:
            monkeypatch.setattr(here, "note", notes.append)
        one, model = trainer(3), Counting()
        one.strategy._launcher = GangLauncher(here)
        one.fit(model, DataLoader(TensorDataset(torch.ones(1, 1))), ckpt_path=given)
        return model.epochs

    return run


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return trained(tmp_path / "users.ckpt", 1)


@pytest.fixture
def own(tmp_path: Path) -> CheckpointInfo:
    return CheckpointInfo(str(trained(tmp_path / "own.ckpt", 2)), number=2)


@pytest.mark.parametrize("job", [False, True])
def test_a_trial_that_starts_again_goes_on_from_its_own_checkpoint_not_from_the_user_s(
    fit: Fit, users: Path, own: CheckpointInfo, job: bool
) -> None:
    assert fit(None, users, job=job) == [1, 2]
    assert fit(own, users, job=job) == [2]


def test_a_trial_that_passes_over_the_user_s_checkpoint_says_so(fit: Fit, users: Path, own: CheckpointInfo) -> None:
    notes: list[str] = []
    fit(own, users, notes=notes)
    assert len(notes) == 1
    assert f"ckpt_path={str(users)!r}" in notes[0]
    assert "report 2" in notes[0]
    notes.clear()
    fit(own, Path(own.path), notes=notes)
    fit(own, None, notes=notes)
    fit(None, users, notes=notes)
    assert notes == []


def test_a_fit_that_wrote_no_checkpoint_of_its_own_takes_the_user_s(fit: Fit, users: Path, own: CheckpointInfo) -> None:
    assert fit(own, users, fit=1) == [1, 2]
