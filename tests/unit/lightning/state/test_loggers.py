"""Loggers of a trial that was started again: the same files, each step once."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit import tasks
from tunelight.compat.lightning import CSVLogger, MLFlowLogger, TensorBoardLogger, pl
from tunelight.lightning.recipe import _made
from tunelight.lightning.state import loggers
from tunelight.messages import CheckpointInfo
from tunelight.session.session import Session


def session_of(folder: Path, trial: str = "0", resume: bool = False, rank: int = 0, **task: Any) -> Session:
    session = tasks.session_of(
        folder, rank, 2, trial_id=trial, resume=CheckpointInfo("x", 1, fit=0) if resume else None, **task
    )
    session.boundary.begin_fit()
    return session


def take(session: Session, *given: Any) -> Any:
    """Let loggers go on in a Trainer of the session's rank; return it."""
    trainer: Any = SimpleNamespace(loggers=given, callbacks=[], is_global_zero=session.context.rank == 0)
    loggers.go_on(trainer, session)
    return trainer


def start(folder: Path, resume: bool, kind: Any = CSVLogger) -> tuple[Any, Any]:
    logger = kind(folder)
    return take(session_of(folder, resume=resume), logger), logger


def write(logger: Any, steps: range, name: str = "loss") -> None:
    for step in steps:
        logger.log_metrics({name: float(step)}, step=step)
    logger.save()


def steps_of(folder: Path) -> list[int]:
    text = (folder / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    return [int(row["step"]) for row in csv.DictReader(text.splitlines())]


CHECKPOINT = {"global_step": 3, "loops": {"fit_loop": {"epoch_loop.state_dict": {"_batches_that_stepped": 2}}}}


def test_a_csv_goes_on_behind_the_rows_that_the_checkpoint_knows(tmp_path: Path) -> None:
    trainer, logger = start(tmp_path, resume=False)
    write(logger, range(3))
    counts = loggers.rows(trainer)
    write(logger, range(3, 6))
    trainer, logger = start(tmp_path, resume=True)
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 5]
    loggers.drop_lost(trainer, CHECKPOINT, counts)
    write(logger, range(3, 4), name="another")
    write(logger, range(4, 7))
    assert steps_of(tmp_path) == list(range(7))
    assert [path.name for path in (tmp_path / "lightning_logs").iterdir()] == ["version_0"]


def test_a_trial_that_starts_from_scratch_writes_the_same_file_anew(tmp_path: Path) -> None:
    _, logger = start(tmp_path, resume=False)
    write(logger, range(5))
    _, logger = start(tmp_path, resume=False)
    write(logger, range(2))
    assert steps_of(tmp_path) == [0, 1]


def test_tensorboard_hides_what_was_written_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, logger = start(tmp_path, resume=False, kind=TensorBoardLogger)
    write(logger, range(6))
    logger.experiment.close()
    trainer, logger = start(tmp_path, resume=True, kind=TensorBoardLogger)
    loggers.drop_lost(trainer, CHECKPOINT, {})
    write(logger, range(3, 5))
    logger.experiment.close()
    events = EventAccumulator(str(tmp_path / "lightning_logs" / "version_0"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2, 3, 4]


def test_each_fit_of_a_trial_has_a_run_of_its_own_in_a_shared_folder(tmp_path: Path) -> None:
    """Lightning would delete the rows of the first fold."""
    for resume in (False, True):  # a trial that starts again goes on with the same ones
        session = session_of(tmp_path / "sweep" / "trial_0", resume=resume)
        for fold in range(3):
            take(session, logger := CSVLogger(tmp_path / "all", "digits"))
            write(logger, range(fold, fold + 1))
            session.boundary.begin_fit()
    written = {path.parent.name: path.read_text() for path in (tmp_path / "all" / "digits").glob("*/metrics.csv")}
    assert {name: text.splitlines()[1] for name, text in written.items()} == {
        "sweep-0": "0.0,0",
        "sweep-0-2": "1.0,1",
        "sweep-0-3": "2.0,2",
    }


def test_a_version_that_was_given_stays_and_that_of_a_trainer_that_is_no_trial_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    mine, counted = CSVLogger(tmp_path / "all", version="mine"), CSVLogger(tmp_path / "all")
    take(session_of(folder / "trial_0"), mine)
    take(session_of(folder / "trial_2", job=True), counted)
    assert (mine.version, counted.version) == ("mine", 0)
    versions = []
    for rank in (1, 0):
        both = [CSVLogger(tmp_path / "all", "digits") for _ in range(2)]
        take(session_of(folder / "trial_1", rank=rank), *both)
        versions.append([logger.version for logger in both])
    assert versions == [["sweep-0", "sweep-0-2"]] * 2, "all ranks know the runs of two loggers"


@pytest.mark.parametrize(("own", "logged"), [(False, [{"lr": 0.5}]), (True, [])])
def test_a_configuration_is_logged_where_the_module_logs_none(tmp_path: Path, own: bool, logged: Any) -> None:
    found: list[Any] = []
    trainer: Any = SimpleNamespace(
        loggers=[SimpleNamespace(log_hyperparams=found.append)], is_global_zero=True, datamodule=None
    )
    module: Any = SimpleNamespace(_log_hyperparams=own)
    loggers.configuration(trainer, module, session_of(tmp_path, config={"lr": 0.5}))
    loggers.configuration(trainer, module, session_of(tmp_path, config={"lr": 0.5}, job=True))
    assert found == logged


def test_the_runs_of_mlflow_are_in_the_experiment_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLFlowLogger, "__init__", lambda self, name: setattr(self, "_experiment_name", name))
    both: Any = MLFlowLogger("lightning_logs"), MLFlowLogger("mine")
    for one in both:
        take(session_of(tmp_path / "digits" / "trial_00003", "00003"), one)
    assert [one._experiment_name for one in both] == ["digits", "mine"]


def test_a_logger_that_is_given_as_a_function_is_made_for_each_trial(tmp_path: Path) -> None:
    one = CSVLogger(tmp_path)
    assert _made(one) is one
    assert _made(True) is True
    first, second = _made([lambda: CSVLogger(tmp_path, "a"), lambda: CSVLogger(tmp_path, "b")])
    assert (first.name, second.name) == ("a", "b")


@pytest.mark.parametrize("imported", [False, True], ids=["made in the trial", "of an imported module"])
def test_trials_that_share_a_folder_for_checkpoints_each_have_one_in_it(tmp_path: Path, imported: bool) -> None:
    folders = []
    once = pl.callbacks.ModelCheckpoint(tmp_path / "all")
    for trial in ("00000", "00001", "00001"):  # the last starts again
        session = session_of(tmp_path / "sweep" / f"trial_{trial}", trial)
        shared = once if imported else pl.callbacks.ModelCheckpoint(tmp_path / "all")
        own = pl.callbacks.ModelCheckpoint(session.context.trial_dir)
        trainer: Any = SimpleNamespace(callbacks=[shared, own, pl.callbacks.ModelCheckpoint()])
        for _ in range(2):  # a trial may fit twice
            loggers.keep_checkpoints_apart(trainer, session.context)
        assert own.dirpath == session.context.trial_dir
        folders.append(Path(str(shared.dirpath)).relative_to(tmp_path / "all"))
    assert [str(folder) for folder in folders] == ["sweep-00000", "sweep-00001", "sweep-00001"]
