"""Loggers of a trial that was started again: the same files, each step once."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from tunelight.control import Mailbox
from tunelight.messages import CheckpointInfo, Place, Task
from tunelight.session import Session
from tunelight.strategies import logs


def start(folder: Path, resume: bool, kind: Any = CSVLogger) -> tuple[Any, Any]:
    info = CheckpointInfo("x", 1) if resume else None
    task = Task("0", str(folder), {}, b"", 1, ".", resume=info)
    nothing: Any = None
    session = Session(task, Place(0, 1, 0, 1, 0, "x"), nothing, nothing, Mailbox())
    session.fit = 0
    logger = kind(folder)
    trainer: Any = SimpleNamespace(loggers=[logger], is_global_zero=True)
    logs.go_on(trainer, session)
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
    counts = logs.rows(trainer)
    write(logger, range(3, 6))
    trainer, logger = start(tmp_path, resume=True)
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 5]
    logs.drop_lost(trainer, CHECKPOINT, counts)
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
    logs.drop_lost(trainer, CHECKPOINT, {})
    write(logger, range(3, 5))
    logger.experiment.close()
    events = EventAccumulator(str(tmp_path / "lightning_logs" / "version_0"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2, 3, 4]
