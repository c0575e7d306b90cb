"""Loggers of a trial: each has one run, named and grouped by sweep, which a restarted trial continues.

The version (``version_0``, ...) or run of a logger is kept in the trial's folder. CSVLogger and TensorBoardLogger
continue as one curve; how WandbLogger, MLFlowLogger and others treat a repeated step is up to them.
"""

from __future__ import annotations

import contextlib
import csv
import json
import secrets
import warnings
import weakref
from pathlib import Path
from typing import Any

from tunelight.compat.lightning import Checkpoint, CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger, pl
from tunelight.session.context import Context
from tunelight.session.session import Session

_NOTE = "loggers.json"
_LIGHTNINGS_NAME = "lightning_logs"
"""MLFlowLogger's default name of an experiment."""
_given: weakref.WeakKeyDictionary[Checkpoint, Any] = weakref.WeakKeyDictionary()
"""Checkpoint callback -> the folder that it was given, if any."""


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
        key = f"{session.progress.fit + tuning} {number} {type(logger).__name__}"
        run = None if session.task.job else _named(logger, context, versions.get(key))
        if run is not None:
            versions[key] = run
        if not isinstance(logger, CSVLogger | TensorBoardLogger) or logger._experiment is not None:
            continue
        key = f"{key} {logger.name}"
        if logger._version is None:
            logger._version = versions[key] if key in versions else _shared(logger, context, job=session.task.job)
        if context.rank > 0:
            continue
        if key in versions and not tuning:
            _keep(logger, scratch=session.checkpoint_for_fit() is None)
        versions.setdefault(key, logger.version)
    if versions != before and context.rank == 0:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(versions))


def configuration(trainer: pl.Trainer, pl_module: pl.LightningModule, session: Session) -> None:
    """Log the trial's configuration, unless module or data module log hyperparameters. Runs on: worker."""
    data: Any = getattr(trainer, "datamodule", None)
    own = any(getattr(one, "_log_hyperparams", False) for one in (pl_module, data))
    if session.context.config and not session.task.job and not own and trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(session.context.config))


def _sweep(context: Context) -> str:
    return Path(context.trial_dir).parent.name


def _shared(logger: CSVLogger | TensorBoardLogger, context: Context, *, job: bool) -> str | None:
    """Return a version of the trial's own where trials share a folder and would take the same number, else None."""
    if job or inside(logger.save_dir or ".", context):
        return None
    return f"{_sweep(context)}-{context.trial_id}"


def inside(folder: Any, context: Context) -> bool:
    """Tell whether a folder lies in the trial's own."""
    return Path(folder).absolute().is_relative_to(Path(context.trial_dir).absolute())


def keep_checkpoints_apart(trainer: pl.Trainer, context: Context) -> None:
    """Give checkpoint callbacks with a folder that all trials share a folder of the trial's in it.

    Runs on: worker, before a Trainer's set-up, in which Lightning names the folders that are not given: in later runs
    of the Trainer they look as if they were.
    """
    own = Path(context.trial_dir).name.replace("trial_", f"{_sweep(context)}-", 1)
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    for one in callbacks:
        if isinstance(one, Checkpoint):
            folder = _given.setdefault(one, getattr(one, "dirpath", None))
            if folder is not None and "://" not in str(folder) and not inside(folder, context):
                one.dirpath = str(Path(folder, own))  # type: ignore[attr-defined]  # it has one


def _named(logger: Any, context: Context, run: str | None) -> str | None:
    """Name the run of a logger that keeps its runs on a server; return its id, None for other loggers."""
    if isinstance(logger, WandbLogger):
        return _name_wandb(logger, context, run)
    return _name_mlflow(logger, context, run) if isinstance(logger, MLFlowLogger) else None


def _name_wandb(logger: WandbLogger, context: Context, run: str | None) -> str | None:
    """Name and group a run of Weights & Biases that has not begun, or continue ``run``; return its id."""
    init = logger._wandb_init
    if logger._experiment is not None or getattr(logger, "_attach_id", None) is not None:
        return None
    sweep = _sweep(context)
    init["name"] = logger._name = init.get("name") or f"{sweep}-{context.trial_id}"
    init["group"] = init.get("group") or sweep
    # Ids are unique in a project, which may have had a sweep of the same name.
    init["id"] = logger._id = init.get("id") or run or f"{sweep}-{context.trial_id}-{secrets.token_hex(4)}"
    return str(init["id"])


def _name_mlflow(logger: MLFlowLogger, context: Context, run: str | None) -> str | None:
    """Name a run of MLflow that has not begun, in the sweep's experiment, or continue ``run``; return its id."""
    if logger._initialized or context.rank > 0:
        return None
    sweep = _sweep(context)
    if logger._experiment_name == _LIGHTNINGS_NAME:
        logger._experiment_name = sweep
    logger._run_name = logger._run_name or f"{sweep}-{context.trial_id}"
    logger.tags = {"tunelight.sweep": sweep, "tunelight.trial": context.trial_id, **(logger.tags or {})}
    logger._run_id = logger._run_id or run
    try:
        made = logger.run_id  # this makes it: its id is saved before anything can fail
    except Exception:  # noqa: BLE001 - MLflow's, where another trial made the sweep's experiment in the same moment
        made = logger.run_id
    if run is not None and made == run:
        logger.experiment.update_run(run, status="RUNNING")  # a pause or a fault has ended it
    return made


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
            counts[number] = len(_read(logger))
    return counts


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
