"""Loggers of a trial that write files: each has one version, named by sweep, which a restarted trial continues.

The version (``version_0``, ...) is kept in the trial's folder, and continues as one curve. Runs of WandbLogger and
MLFlowLogger are those of extras/trackers.py.
"""

from __future__ import annotations

import contextlib
import csv
import json
import warnings
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tunelight.compat.lightning import Checkpoint, CSVLogger, MLFlowLogger, TensorBoardLogger, pl
from tunelight.session.session import Context, Session

_NOTE = "loggers.json"
_LIGHTNINGS_NAME = "lightning_logs"
"""MLFlowLogger's default name of an experiment."""
_given: weakref.WeakKeyDictionary[Checkpoint, Any] = weakref.WeakKeyDictionary()
"""Checkpoint callback -> the folder that it was given, if any."""
_counted: weakref.WeakKeyDictionary[Any, tuple[str, int, int]] = weakref.WeakKeyDictionary()  # head, end, rows


def go_on(trainer: pl.Trainer, session: Session, *, tuning: bool = False) -> None:
    """Give each logger a run of the trial: the one of its former start, with its content, or a new one.

    Names and groups that the user has set stay. A fit of Lightning's Tuner (``tuning``) logs nothing, and its loggers
    get the run of the next fit. Runs on: worker, before a fit looks for its loggers' folders.
    """
    context = session.context
    note = Path(context.trial_dir, _NOTE)
    versions: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        versions = json.loads(note.read_text())
    before = dict(versions)
    for number, logger in enumerate(trainer.loggers):
        if isinstance(logger, MLFlowLogger) and not session.task.job and logger._experiment_name == _LIGHTNINGS_NAME:
            logger._experiment_name = _sweep(context)
        if not isinstance(logger, CSVLogger | TensorBoardLogger) or logger._experiment is not None:
            continue
        kind = f"{type(logger).__name__} {logger.name}"
        key = f"{session.progress.fit + tuning} {number} {kind}"
        if logger._version is None:
            taken = [version for known, version in versions.items() if known.endswith(f" {kind}")]
            new = None if key in versions or session.task.job else _shared(logger, context, taken)
            logger._version = versions.get(key, new)
        if context.rank == 0 and key in versions and not tuning:
            _keep(logger, scratch=session.checkpoint_for_fit() is None)
        versions.setdefault(key, logger._version if context.rank else logger.version)  # rank 0 chooses the next number
    if versions != before and context.rank == 0:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(versions))


def configuration(trainer: pl.Trainer, pl_module: pl.LightningModule, session: Session) -> None:
    """Log the trial's configuration, unless module or data module log hyperparameters. Runs on: worker."""
    data: Any = getattr(trainer, "datamodule", None)
    by_module = any(getattr(part, "_log_hyperparams", False) for part in (pl_module, data))
    if session.context.config and not session.task.job and not by_module and trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(session.context.config))


def _sweep(context: Context) -> str:
    return Path(context.trial_dir).parent.name


def _shared(logger: CSVLogger | TensorBoardLogger, context: Context, taken: Collection[Any]) -> str | None:
    """Return a version that neither trials that share a folder nor others like it of this trial take, or None."""
    if inside(logger.save_dir or ".", context):
        return None
    base = f"{_sweep(context)}-{context.trial_id}"
    return next(name for name in (base, *(f"{base}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def inside(folder: Any, context: Context) -> bool:
    """Tell whether a folder lies in the trial's own."""
    return Path(folder).resolve().is_relative_to(Path(context.trial_dir).resolve())


def keep_checkpoints_apart(trainer: pl.Trainer, context: Context) -> None:
    """Give checkpoint callbacks with a folder that all trials share a folder of the trial's in it.

    Runs on: worker, before a Trainer's set-up, in which Lightning names the folders that are not given: in later runs
    of the Trainer they look as if they were.
    """
    name = Path(context.trial_dir).name.replace("trial_", f"{_sweep(context)}-", 1)
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    for callback in callbacks:
        if isinstance(callback, Checkpoint):
            folder = _given.setdefault(callback, getattr(callback, "dirpath", None))
            if folder is not None and "://" not in str(folder) and not inside(folder, context):
                callback.dirpath = str(Path(folder, name))  # type: ignore[attr-defined]  # it has one


def _keep(logger: CSVLogger | TensorBoardLogger, *, scratch: bool) -> None:
    """Keep a logger's former content; from ``scratch``, discard it, since all steps are repeated."""
    if isinstance(logger, TensorBoardLogger):
        if scratch:
            logger._kwargs["purge_step"] = 0
        return
    rows = [] if scratch else _read(logger)
    with warnings.catch_warnings(action="ignore"):  # Lightning warns of the file, which it deletes
        writer = logger.experiment
    if rows:
        _write(writer, rows)


def _read(logger: CSVLogger) -> list[dict[str, str]]:
    with contextlib.suppress(OSError), Path(logger.log_dir, "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))
    return []


def _write(writer: Any, rows: list[dict[str, str]]) -> None:
    _counted.pop(writer, None)
    names = sorted({name for row in rows for name in row})
    Path(writer.log_dir).mkdir(parents=True, exist_ok=True)
    with Path(writer.metrics_file_path).open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=names)
        table.writeheader()
        table.writerows(rows)
    writer.metrics_keys = names


def rows(trainer: pl.Trainer) -> dict[int, int]:
    """Return the number of rows of each CSVLogger, by its index among the loggers. Empty on other ranks than 0."""
    counts = {}
    for number, logger in enumerate(trainer.loggers if trainer.is_global_zero else []):
        if isinstance(logger, CSVLogger) and logger._experiment is not None:
            logger.save()
            with contextlib.suppress(OSError):
                counts[number] = _count(logger)
    return counts


def _count(logger: CSVLogger) -> int:
    """Return how many rows a logger's file has; those that were counted before are not read again."""
    with Path(logger.log_dir, "metrics.csv").open(newline="") as file:
        names = file.readline()
        known, end, count = _counted.get(logger._experiment, ("", 0, 0))
        if known != names:  # a new file, or one that was written anew for a new metric
            end, count = file.tell(), 0
        file.seek(end)
        count += sum(map(bool, csv.reader(file.read().splitlines(keepends=True))))
        _counted[logger._experiment] = names, file.tell(), count
    return count


def drop_lost(trainer: pl.Trainer, checkpoint: dict[str, Any], counts: dict[int, int]) -> None:
    """Discard what loggers wrote after ``checkpoint``: these steps are repeated."""
    if not trainer.is_global_zero:
        return
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    step = loops.get("epoch_loop.state_dict", {}).get("_batches_that_stepped", checkpoint["global_step"])
    epochs = loops.get("epoch_progress", {}).get("current", {})
    within = epochs.get("processed") != epochs.get("started", 0)  # then the step is counted after the checkpoint
    for number, logger in enumerate(trainer.loggers):
        if isinstance(logger, TensorBoardLogger):  # which hides the events from a step on
            logger._kwargs["purge_step"] = step + within
            if logger._experiment is not None:
                logger._experiment.close()
                logger._experiment = None
        elif isinstance(logger, CSVLogger) and (kept := _read(logger)):
            _write(logger.experiment, kept[: counts.get(number, len(kept))])
