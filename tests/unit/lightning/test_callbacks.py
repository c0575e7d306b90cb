"""The report callbacks: which metrics, at which hooks, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.checkpoints.policy import Checkpoints
from tunelight.compat.lightning import TrainerFn
from tunelight.errors import MetricError, SettingsError
from tunelight.lightning.callbacks import TuneReportCallback
from tunelight.session import session

pytestmark = pytest.mark.usefixtures("every_checkpoint")


@pytest.fixture
def reports(join: Any) -> list[Any]:
    """Events of a trial of one rank that needs no answers."""
    events: list[Any] = []
    join(rank=0, size=1, hear=events.append, checkpoints=Checkpoints(every=2))
    return events


def trainer(**logged: float) -> Any:
    return SimpleNamespace(
        sanity_checking=False,
        state=SimpleNamespace(fn=TrainerFn.FITTING),
        callbacks=[],
        callback_metrics=logged,
        current_epoch=4,
        global_step=50,
        save_checkpoint=lambda path: Path(path).write_text("weights"),
    )


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"loss": "val_loss"}, {"loss": 0.5}),
        (["val_loss"], {"val_loss": 0.5}),
        ("val_loss", {"val_loss": 0.5}),
        (None, {"val_loss": 0.5, "val_acc": 0.9}),
    ],
)
def test_metrics_may_be_a_dict_a_list_a_name_or_all(reports: list[Any], metrics: Any, expected: Any) -> None:
    TuneReportCallback(metrics).on_validation_end(trainer(val_loss=0.5, val_acc=0.9), None)  # type: ignore[arg-type]
    (report,) = reports
    assert report.metrics == expected
    assert (report.epoch, report.step) == (4, 50)


def test_the_last_epoch_is_the_one_that_was_trained(reports: list[Any]) -> None:
    callback = TuneReportCallback(on="fit_end")
    callback.on_fit_end(trainer(a=1), None)  # type: ignore[arg-type]
    assert reports[0].epoch == 3  # current_epoch is 4 by then: four epochs are complete


def test_every_n_leaves_reports_out(reports: list[Any]) -> None:
    callback = TuneReportCallback(every_n=3)
    for _ in range(7):
        callback.on_validation_end(trainer(a=1), None)  # type: ignore[arg-type]
    assert len(reports) == 2
    with pytest.raises(SettingsError, match="1 or more"):
        TuneReportCallback(every_n=0)


def test_a_name_that_was_not_logged_lists_those_that_were(reports: list[Any]) -> None:
    with pytest.raises(MetricError, match=r"'val_los'.*val_acc, val_loss.*Did you mean 'val_loss'"):
        TuneReportCallback("val_los").on_validation_end(trainer(val_loss=1, val_acc=2), None)  # type: ignore[arg-type]


def test_a_callback_survives_pickling_with_its_hooks_and_two_of_a_trainer_keep_states_apart(reports: list[Any]) -> None:
    callback = pickle.loads(pickle.dumps(TuneReportCallback("a", on=["on_train_end", "validation_end"])))
    callback.on_train_epoch_end(trainer(a=1), None)
    callback.on_validation_end(trainer(a=1), None)
    callback.on_train_end(trainer(a=1), None)
    assert [report.number for report in reports] == [1, 2]
    assert callback.state_key != TuneReportCallback("b").state_key


def notes_of(here: Any) -> list[str]:
    """Let a rank of a trial of two need no answer to its first report; return its notes."""
    notes: list[str] = []
    here.boundary._agreement._channel.broadcast(1, "continue")
    here.note = notes.append
    return notes


def in_gang(val: Any = None, train: Any = None, **logged: float) -> Any:
    epochs = SimpleNamespace(_results=train or {}, val_loop=SimpleNamespace(_results=val or {}))
    one = trainer(**logged)
    one.fit_loop = SimpleNamespace(epoch_loop=epochs)
    return one


def logged_as(name: str, *, sync: bool, on_step: bool = False, rank_zero_only: bool = False) -> Any:
    meta = SimpleNamespace(
        name=name, on_step=on_step, on_epoch=True, sync=SimpleNamespace(should=sync, rank_zero_only=rank_zero_only)
    )
    return SimpleNamespace(meta=meta, is_tensor=True)


def test_a_rank_that_has_not_logged_what_rank_0_alone_logs_reports_on(join: Any) -> None:
    notes_of(join(metric="val_loss"))
    TuneReportCallback("val_loss").on_validation_end(in_gang(other=1.0), None)  # type: ignore[arg-type]
    assert session.get_session().context.number == 1


def test_metrics_that_are_rank_0_s_share_are_noted_also_those_of_training(join: Any) -> None:
    notes = notes_of(join(rank=0, metric="val_loss"))
    val = {"a": logged_as("val_loss", sync=False), "b": logged_as("val_acc", sync=True)}
    train = {"a": logged_as("loss", sync=False, on_step=True), "b": logged_as("lead", sync=False, rank_zero_only=True)}
    names = dict.fromkeys(("val_loss", "val_acc", "loss_epoch", "loss_step", "lead"), 1.0)
    TuneReportCallback().on_validation_end(in_gang(val, train, **names), None)  # type: ignore[arg-type]
    assert [note.split()[0] for note in notes] == ["loss_epoch", "val_loss"]
