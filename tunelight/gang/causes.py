"""A worker's exception on the driver."""

from __future__ import annotations

from typing import Any

from ray import cloudpickle
from ray.exceptions import RayActorError

from tunelight.errors import WorkerFailedError

_ONCE = ("context has already been set", "interop threads", "already registered", "already been registered")
"""Words of errors of calls that work once in a process."""


def of_reuse(message: str) -> str:
    """Return what to add to an error of a call that works once in a process, on a worker that has trained before."""
    added = " (Workers train one trial after another. reuse_gangs=False gives each trial new ones.)"
    return added if any(words in message for words in _ONCE) else ""


def carried(error: BaseException) -> bytes | None:
    """Return an exception pickled for the driver; None where that does not work, for a large one, and for an exit."""
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - whatever pickling a user's object raises
        return None
    return data if isinstance(error, Exception) and len(data) <= _MOST_CARRIED else None


_MOST_CARRIED = 2**20
"""The largest size of a pickled exception, in bytes."""


def own_error(failed: WorkerFailedError) -> Exception:
    """Return the exception that was raised on a worker, with a note of rank, node and traceback.

    Returns ``failed`` itself where the exception was not `carried`, or this process cannot import its class.
    """
    try:
        own: Any = cloudpickle.loads(failed.error.exception or b"")
    except Exception:  # noqa: BLE001 - as above
        return failed
    if not isinstance(own, Exception):
        return failed
    for note in (str(failed), *getattr(failed, "__notes__", ())):
        own.add_note(note)
    return own


def lost_data(error: BaseException | None) -> bool:
    """Tell whether an error follows from the end of an actor, such as a dataset's, which ends with rank 0."""
    while error is not None:
        if isinstance(error, RayActorError):
            return True
        error = error.__cause__ or error.__context__
    return False
