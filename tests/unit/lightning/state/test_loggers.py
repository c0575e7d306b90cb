"""Loggers of a trial that was started again: the same files, each step once."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import flavours, tasks
from tunelight.compat.lightning import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger, pl
from tunelight.lightning.state import loggers
from tunelight.messages import CheckpointInfo, Place
from tunelight.session.mailbox import Mailbox
from tunelight.session.session import Session


def session_of(folder: Path, trial: str = "0", resume: bool = False, rank: int = 0, **task: Any) -> Session:
    info = CheckpointInfo("x", 1) if resume else None
    told = tasks.trial(folder, trial_id=trial, resume=info, **task)
    nothing: Any = None
    session = Session(*told, Place(rank, 2, rank, 2, 0, "x"), nothing, nothing, Mailbox())
    session.boundary.begin_fit("the first")
    return session


def start(folder: Path, resume: bool, kind: Any = CSVLogger) -> tuple[Any, Any]:
    logger = kind(folder)
    trainer: Any = SimpleNamespace(loggers=[logger], callbacks=[], is_global_zero=True)
    loggers.go_on(trainer, session_of(folder, resume=resume))
    return trainer, logger


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


# One run a trial, named and grouped by sweep


def take(logger: Any, session: Session) -> Any:
    trainer: Any = SimpleNamespace(loggers=[logger], callbacks=[], is_global_zero=session.context.rank == 0)
    loggers.go_on(trainer, session)
    return logger


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_trials_that_share_a_folder_each_have_a_run_named_by_sweep_and_trial(tmp_path: Path, kind: Any) -> None:
    for trial in ("00000", "00001"):
        logger = take(kind(tmp_path / "all", "digits"), session_of(tmp_path / "sweep" / f"trial_{trial}", trial))
        write(logger, range(2))
    runs = sorted(path.name for path in (tmp_path / "all" / "digits").iterdir())
    assert runs == ["sweep-00000", "sweep-00001"]


def test_a_shared_folders_run_is_gone_on_with(tmp_path: Path) -> None:
    for resume in (False, True):
        session = session_of(tmp_path / "sweep" / "trial_0", resume=resume)
        write(take(CSVLogger(tmp_path / "all", "digits"), session), range(3 * resume, 3 + 3 * resume))
    text = (tmp_path / "all" / "digits" / "sweep-0" / "metrics.csv").read_text()
    assert [int(row["step"]) for row in csv.DictReader(text.splitlines())] == list(range(6))


def test_a_version_that_was_given_stays(tmp_path: Path) -> None:
    logger = take(CSVLogger(tmp_path / "all", version="mine"), session_of(tmp_path / "sweep" / "trial_0"))
    assert logger.version == "mine"


def test_a_trainer_that_is_no_trial_counts_its_versions(tmp_path: Path) -> None:
    logger = take(CSVLogger(tmp_path / "all"), session_of(tmp_path / "sweep" / "trial_0", job=True))
    assert logger.version == 0


class Module:
    def __init__(self, own: bool) -> None:
        self._log_hyperparams = own


@pytest.mark.parametrize(("own", "logged"), [(False, [{"lr": 0.5}]), (True, [])])
def test_a_configuration_is_logged_where_the_module_logs_none(tmp_path: Path, own: bool, logged: Any) -> None:
    found: list[Any] = []
    trainer: Any = SimpleNamespace(
        loggers=[SimpleNamespace(log_hyperparams=found.append)], is_global_zero=True, datamodule=None
    )
    module: Any = Module(own)
    loggers.configuration(trainer, module, session_of(tmp_path, config={"lr": 0.5}))
    loggers.configuration(trainer, module, session_of(tmp_path, config={"lr": 0.5}, job=True))
    assert found == logged


def wandb(**given: Any) -> Any:
    """Return a logger of Weights & Biases as its constructor makes it: it is not installed here."""
    module = flavours.module("loggers.wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WANDB_AVAILABLE", True)
        return WandbLogger(**given)


def test_a_wandb_run_is_named_and_grouped_by_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "digits" / "trial_00003"
    init = take(wandb(), session_of(folder, "00003"))._wandb_init
    assert (init["name"], init["group"]) == ("digits-00003", "digits")
    assert init["id"].startswith("digits-00003-")
    assert init["resume"] == "allow"
    again = take(wandb(), session_of(folder, "00003", resume=True))._wandb_init
    assert again["id"] == init["id"]
    other = take(wandb(), session_of(tmp_path / "digits" / "trial_00004", "00004"))._wandb_init
    assert other["id"] != init["id"]


def test_what_a_wandb_logger_was_given_stays(tmp_path: Path) -> None:
    init = take(wandb(name="n", group="g", id="i"), session_of(tmp_path / "digits" / "trial_0"))._wandb_init
    assert (init["name"], init["group"], init["id"]) == ("n", "g", "i")


def test_only_rank_0_notes_a_run(tmp_path: Path) -> None:
    take(wandb(), session_of(tmp_path / "digits" / "trial_0", rank=1))
    assert not (tmp_path / "digits").exists()


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What a fake MLflow is asked for: it is not installed here."""
    module = flavours.module("loggers.mlflow")
    asked: list[tuple[str, Any]] = []

    class Client:
        def __init__(self, uri: str) -> None: ...

        def get_experiment_by_name(self, name: str) -> None: ...

        def create_experiment(self, name: str, artifact_location: Any) -> str:
            asked.append(("experiment", name))
            return "e1"

        def create_run(self, experiment_id: str, tags: Any) -> Any:
            asked.append(("run", tags))
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def get_run(self, run_id: str) -> Any:
            asked.append(("again", run_id))
            return SimpleNamespace(info=SimpleNamespace(experiment_id="e1"))

        def update_run(self, run_id: str, status: str) -> None:
            asked.append((status, run_id))

    parts = {
        name: ModuleType(name) for name in ("mlflow", "mlflow.tracking", "mlflow.utils", "mlflow.utils.mlflow_tags")
    }
    parts["mlflow"].set_tracking_uri = lambda uri: None  # type: ignore[attr-defined]
    parts["mlflow.tracking"].MlflowClient = Client  # type: ignore[attr-defined]
    parts["mlflow.utils.mlflow_tags"].MLFLOW_RUN_NAME = "mlflow.runName"  # type: ignore[attr-defined]
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, name, part)
    monkeypatch.setattr(module, "_MLFLOW_AVAILABLE", True)
    monkeypatch.setattr(module, "_get_resolve_tags", lambda: dict)
    return asked


def test_an_mlflow_run_is_named_by_sweep_and_gone_on_with(tmp_path: Path, mlflow: list[tuple[str, Any]]) -> None:
    folder = tmp_path / "digits" / "trial_00003"
    take(MLFlowLogger(tracking_uri="x"), session_of(folder, "00003"))
    tags = {"tunelight.sweep": "digits", "tunelight.trial": "00003", "mlflow.runName": "digits-00003"}
    assert mlflow == [("experiment", "digits"), ("run", tags)]
    assert take(MLFlowLogger(tracking_uri="x"), session_of(folder, "00003", resume=True)).run_id == "r1"
    assert mlflow[2:] == [("again", "r1"), ("RUNNING", "r1")]


def test_a_logger_that_is_given_as_a_function_is_made_for_each_trial(tmp_path: Path) -> None:
    from tunelight.lightning.recipe import _made

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


def test_a_folder_that_lightning_has_named_in_a_run_before_is_no_given_one(tmp_path: Path) -> None:
    session = session_of(tmp_path / "sweep" / "trial_00000")
    one = pl.callbacks.ModelCheckpoint()
    trainer: Any = SimpleNamespace(callbacks=[one])
    loggers.keep_checkpoints_apart(trainer, session.context)
    one.dirpath = str(tmp_path / "logs" / "version_0")  # as Lightning's set-up of a validation
    loggers.keep_checkpoints_apart(trainer, session.context)
    assert one.dirpath == str(tmp_path / "logs" / "version_0")
