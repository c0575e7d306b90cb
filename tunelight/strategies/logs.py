"""Loggers of a trial that was started again: they go on with the files of its former start, as one curve.

Which version (``version_0``, ...) a logger took is noted in the trial's folder. CSVLogger and TensorBoardLogger are
known; what other loggers do with a step that comes again is theirs.
"""

from __future__ import annotations

import contextlib
import csv
import json
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from tunelight.session import Session

_NOTE = "loggers.json"


def go_on(trainer: pl.Trainer, session: Session) -> None:
    """Give each logger the version that it had in the trial's former start, and keep what it wrote then.

    Runs on: worker, before a fit looks for its loggers' folders.
    """
    note = Path(session.trial_dir, _NOTE)
    versions: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        versions = json.loads(note.read_text())
    before = dict(versions)
    for number, logger in enumerate(trainer.loggers):
        if not isinstance(logger, CSVLogger | TensorBoardLogger) or logger._experiment is not None:
            continue
        key = f"{session.fit} {number} {type(logger).__name__} {logger.name}"
        if logger._version is None:
            logger._version = versions.get(key)
        if session.rank > 0:
            continue
        if key in versions:
            _keep(logger, scratch=session.checkpoint_for_fit() is None)
        versions.setdefault(key, logger.version)
    if versions != before:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(versions))


def _keep(logger: CSVLogger | TensorBoardLogger, *, scratch: bool) -> None:
    """Keep what a logger wrote before; from ``scratch``, all of it is to come again."""
    if isinstance(logger, TensorBoardLogger):
        if scratch:
            logger._kwargs["purge_step"] = 0
        return
    rows = [] if scratch else _read(logger)
    with warnings.catch_warnings(action="ignore"):  # of the file that this deletes
        writer = logger.experiment
    if rows:
        _write(writer, rows)


def _path(logger: CSVLogger) -> Path:
    return Path(logger.log_dir, "metrics.csv")


def _read(logger: CSVLogger) -> list[dict[str, str]]:
    try:
        with _path(logger).open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []


def _write(writer: Any, rows: list[dict[str, str]]) -> None:
    names = sorted({name for row in rows for name in row})
    Path(writer.log_dir).mkdir(parents=True, exist_ok=True)
    with Path(writer.metrics_file_path).open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=names)
        table.writeheader()
        table.writerows(rows)
    writer.metrics_keys = names


def rows(trainer: pl.Trainer) -> dict[int, int]:
    """Return how many rows each CSVLogger has written, by its place among the loggers. Known on rank 0."""
    counts = {}
    for number, logger in enumerate(trainer.loggers if trainer.is_global_zero else []):
        if isinstance(logger, CSVLogger) and logger._experiment is not None:
            logger.save()
            counts[number] = len(_read(logger))
    return counts


def drop_lost(trainer: pl.Trainer, checkpoint: dict[str, Any], counts: dict[int, int]) -> None:
    """Drop what loggers wrote after ``checkpoint``: those steps come again."""
    if not trainer.is_global_zero:
        return
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    step = loops.get("epoch_loop.state_dict", {}).get("_batches_that_stepped", checkpoint["global_step"])
    for number, logger in enumerate(trainer.loggers):
        if isinstance(logger, TensorBoardLogger):
            _purge(logger, step + 1)
        elif isinstance(logger, CSVLogger) and (kept := _read(logger)):
            _write(logger.experiment, kept[: counts.get(number, len(kept))])


def _purge(logger: TensorBoardLogger, step: int) -> None:
    """Hide the events from a step on, as TensorBoard does for a writer with ``purge_step``."""
    logger._kwargs["purge_step"] = step
    if logger._experiment is not None:
        logger._experiment.close()
        logger._experiment = None
