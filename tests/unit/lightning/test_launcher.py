"""The launcher inside a worker, under Lightning's own Trainer: from which checkpoint a fit goes on, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.kit import tasks
from tests.kit.training import QUIET, TwoLayers
from tunelight.compat.lightning import CSVLogger, pl
from tunelight.errors import TrialStopped
from tunelight.lightning.launcher import GangLauncher
from tunelight.messages import FAILED, CheckpointInfo, Stop
from tunelight.session.mailbox import Mailbox


def trainer(epochs: int, **settings: Any) -> pl.Trainer:
    return pl.Trainer(max_epochs=epochs, **QUIET | settings)


def trained(path: Path, epochs: int) -> Path:
    one = trainer(epochs)
    one.fit(TwoLayers(), DataLoader(TensorDataset(torch.ones(1, 4), torch.ones(1, 1))))
    one.save_checkpoint(path)
    return path


def test_a_trial_that_starts_again_goes_on_from_its_own_checkpoint_and_says_that_it_passes_over_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    def fit(resume: CheckpointInfo | None, given: Path | None, *, fits: int = 0, **task: Any) -> list[int]:
        """Fit three epochs in a worker whose trial has trained one or two, as it is told."""
        here = tasks.session_of(tmp_path, resume=resume, **task)
        for _ in range(fits):
            here.boundary.begin_fit()
        notes.clear()
        monkeypatch.setattr(here, "note", notes.append)
        one, model = trainer(3), TwoLayers()
        one.strategy._launcher = GangLauncher(here)
        one.fit(model, DataLoader(TensorDataset(torch.ones(1, 4), torch.ones(1, 1))), ckpt_path=given)
        return model.epochs

    users = trained(tmp_path / "users.ckpt", 1)
    own = CheckpointInfo(str(trained(tmp_path / "own.ckpt", 2)), number=2, fit=0)
    for job in (False, True):
        assert fit(None, users, job=job) == [1, 2]
        assert fit(own, users, job=job) == [2]
    assert fit(own, users, fits=1) == [1, 2], "a fit that wrote none takes the user's"
    fit(own, users)
    assert len(notes) == 1
    assert f"ckpt_path={str(users)!r}" in notes[0]
    assert "report 2" in notes[0]
    for resume, given in ((own, Path(own.path)), (own, None), (None, users)):
        fit(resume, given)
        assert notes == []


class Heard(pl.Callback):
    """Notes how a run ends, and by what word a logger and a data module hear of it."""

    def __init__(self) -> None:
        self.hooks: list[str] = []

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.hooks.append(
            "on_train_end" if trainer.training and pl_module.training else "on_train_end, while it validates"
        )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.hooks.append("on_fit_end")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.hooks.append(f"on_exception {type(exception).__name__}")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.hooks.append("teardown")


class Data(pl.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(2, 4), torch.ones(2, 1)))

    val_dataloader = train_dataloader


class Words(CSVLogger):
    """Keeps the words by which it is finalized, and the hooks that were heard before."""

    def __init__(self, folder: Path, hooks: list[str]) -> None:
        super().__init__(folder)
        self.words: list[str] = []
        self.hooks = hooks

    def finalize(self, status: str) -> None:
        self.words.append(status)
        self.before = list(self.hooks)


class Validating(TwoLayers):
    """Reports at the end of each validation, and again at the end of training."""

    def __init__(self, report: Callable[[], None]) -> None:
        super().__init__()
        self.report = report

    def validation_step(self, batch: Any, index: int) -> None: ...

    def on_validation_end(self) -> None:
        self.report()

    on_train_end = on_validation_end


Ended = Callable[..., tuple[list[str], list[str], pl.Trainer]]


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    """Return a function that fits until an exception; it returns the hooks and words heard, and the Trainer."""

    def run(reason: str | None = None, aborted: str | None = None, **task: Any) -> tuple[list[str], list[str], Any]:
        box = Mailbox(1)
        if aborted is not None:
            box.abort(aborted)
        elif reason is not None:
            box.put(Stop(reason))
        here = tasks.session_of(tmp_path, mailbox=box, **task)

        def report() -> None:
            if reason is aborted is None:
                raise ZeroDivisionError("on purpose")
            here.context.report({"loss": 1.0})

        heard = Heard()
        words = Words(tmp_path, heard.hooks)
        one = trainer(3, callbacks=[heard], logger=words, num_sanity_val_steps=0)
        one.strategy._launcher = GangLauncher(here)
        before = list(one.callbacks)  # type: ignore[attr-defined]  # Lightning's, set elsewhere
        data: Any = Data()
        data.on_exception = lambda _: heard.hooks.append("the data module's on_exception")
        with pytest.raises(ZeroDivisionError if reason is aborted is None else TrialStopped):
            one.fit(Validating(report), datamodule=data)
        assert one.callbacks == before  # type: ignore[attr-defined]  # as above
        assert one.datamodule is data  # type: ignore[attr-defined]  # as above
        assert "on_exception" not in vars(one.strategy)
        assert one.interrupted
        return heard.hooks, words.words, one

    return run


def test_a_stop_is_the_end_of_training_for_callbacks_data_and_loggers(ended, capsys) -> None:
    hooks, words, _ = ended("asha")
    assert hooks == ["on_train_end", "on_fit_end", "teardown"]
    assert words == ["success"]
    said = [line for line in capsys.readouterr().out.splitlines() if "while cleaning up" in line]
    assert said == ["tunelight: while cleaning up after a trial: TrialStopped: asha"]  # a report at the end of training


@pytest.mark.parametrize("reason", ["asha", "paused"])
def test_a_stopped_fit_is_busy_while_its_end_is_run(tmp_path: Path, reason: str) -> None:
    box = Mailbox(1)
    box.put(Stop(reason))
    here = tasks.session_of(tmp_path, mailbox=box)
    busy: dict[str, bool] = {}

    class Uploads(pl.Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            busy["training"] = here.busy
            here.context.report({"loss": 1.0})

        def teardown(self, *_: Any, **__: Any) -> None:
            busy["teardown"] = here.busy

    one = trainer(3, callbacks=[Uploads()])
    one.strategy._launcher = GangLauncher(here)
    with pytest.raises(TrialStopped):
        one.fit(TwoLayers(), DataLoader(TensorDataset(torch.ones(1, 4), torch.ones(1, 1))))
    assert busy == {"training": False, "teardown": True}
    assert not here.busy


@pytest.mark.parametrize(
    ("how", "word"),
    [
        *(({"reason": reason}, "finished") for reason in ("paused", "resize", "moved", "adopt")),  # as a requeued job
        ({"aborted": f"{FAILED} on rank 1"}, "failed"),
    ],
)
def test_a_pause_and_a_failure_elsewhere_are_no_end_and_loggers_hear_of_them(ended: Ended, how: Any, word: str) -> None:
    hooks, words, _ = ended(**how)
    assert (hooks, words) == (["teardown"], [word])


def test_an_error_is_an_exception_as_without_a_gang(ended: Ended) -> None:
    hooks, words, one = ended()
    assert hooks == ["on_exception ZeroDivisionError", "the data module's on_exception", "teardown"]
    assert words == ["failed"]
    assert one.logger.before == hooks[:2]  # type: ignore[union-attr]  # finalized between them, as by Lightning


@pytest.mark.parametrize("fails", ["on_exception", "teardown"])
def test_an_error_of_a_hook_behind_an_error_does_not_hide_it(ended, monkeypatch, capsys, fails) -> None:
    monkeypatch.setattr(Heard, fails, mock.Mock(side_effect=OSError("later")))
    _, words, _ = ended()
    assert words == ["failed"]
    assert "while cleaning up after a trial: OSError: later" in capsys.readouterr().out


def test_a_trainer_that_was_stopped_runs_again_and_is_heard(ended: Ended) -> None:
    hooks, words, one = ended("stopped")
    hooks.clear()
    one.validate(Validating(lambda: None), DataLoader(TensorDataset(torch.ones(2, 4), torch.ones(2, 1))), verbose=False)
    assert hooks == ["teardown"]
    assert words == ["success", "success"]
