"""Everything that can go wrong for a user, each saying what was wanted, what came and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

from tunelight.messages import WorkerError


class TunelightError(Exception):
    """Base of all errors that tunelight raises on purpose."""


class SpaceError(TunelightError, ValueError):
    """A search space is empty, or holds something that is no domain."""


class SettingsError(TunelightError, ValueError):
    """A setting of a sweep has a wrong name or value, or contradicts another."""


class ArgumentError(SettingsError, TypeError):
    """A function or class was called with an argument that it does not take, or without one that it needs."""


class TrainFunctionError(TunelightError, TypeError):
    """The train function, model or data module cannot be used as given."""


class ImportPathError(TunelightError, ImportError):
    """An import path in a YAML file does not import."""


class MetricError(TunelightError, KeyError):
    """A metric was asked for that was never logged or reported."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StrategyError(TunelightError, RuntimeError):
    """A Trainer does not train on the gang that it runs in."""


class ResourceError(TunelightError, RuntimeError):
    """A gang cannot be reserved on this cluster."""


class HeadLostError(TunelightError, ConnectionError):
    """The head of the Ray cluster is gone, and the sweep with it; what was recorded is not."""


class StorageError(TunelightError, OSError):
    """A sweep's folder cannot be written, exists already, or does not hold a sweep."""


class ContextError(TunelightError, RuntimeError):
    """Something that only works inside a trial was used outside of one."""


class DataError(TunelightError, RuntimeError):
    """A dataset cannot be read, or cannot be dealt to the ranks of a gang."""


class CheckpointError(TunelightError, RuntimeError):
    """A checkpoint is missing, torn, or cannot be written."""


class ReportError(TunelightError, RuntimeError):
    """A figure cannot be drawn here: something that it needs is missing."""


class NoResultError(TunelightError, RuntimeError):
    """A result was asked for that the sweep does not have (no trial reported, say)."""


class WorkerFailedError(TunelightError, RuntimeError):
    """Training failed on a worker; ``error`` says on which rank and node, and holds the traceback."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class TrialError(WorkerFailedError):
    """A trial failed on one of its workers."""


class SweepFailedError(WorkerFailedError):
    """A sweep ended early because its first trials all failed with the same ``error``; ``folder`` holds what ran."""

    def __init__(self, error: WorkerError, message: str, folder: str) -> None:
        super().__init__(error)
        self.args = (error, message, folder)
        self.message = message
        self.folder = folder

    def __str__(self) -> str:
        return self.message


class GangError(TunelightError, RuntimeError):
    """A gang's workers could not be started, did not meet, or did not answer in time.

    ``cause`` is "exception" where the user's own code kept them from it (an init_hook, a runtime environment), so that
    trying again is of no use.
    """

    def __init__(self, message: str, cause: Literal["exception", "unresponsive"] = "unresponsive") -> None:
        super().__init__(message, cause)
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])


class TrialStopped(BaseException):
    """Raised by ``report`` on every rank when the trial was told to stop at this boundary.

    It is a BaseException so that ``except Exception`` in training code does not swallow it.
    """


HOW_TO_GET_DATA = (
    "Ray Data reads and moves data as Arrow tables, and pyarrow is not installed. Install it with: "
    "pip install 'tunelight[data]'"
)


def guess(name: Any, valid: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest valid name, or an empty string."""
    close = difflib.get_close_matches(str(name), list(valid), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: Any, valid: Iterable[str], hint: str | None = None) -> str:
    """Return "There is no scheduler 'ahsa'. Did you mean 'asha'? There are: ..." for ``what``, "There is no scheduler".

    ``hint`` is said instead of the nearest valid name; it begins with a blank.
    """
    valid = list(valid)
    return f"{what} {name!r}.{guess(name, valid) if hint is None else hint} There are: {', '.join(valid)}."
