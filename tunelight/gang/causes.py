"""A worker's exception on the driver, where it is raised as an instance of its own class as well."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from ray import cloudpickle
from ray.exceptions import RayActorError

from tunelight.errors import WorkerFailedError
from tunelight.messages import WorkerError

_ONCE = ("context has already been set", "interop threads", "already registered", "already been registered")
"""Words of errors of calls that work once in a process."""


def of_reuse(message: str) -> str:
    """Return what to add to an error of a call that works once in a process, on a worker that has trained before."""
    added = " (Workers train one trial after another. reuse_gangs=False gives each trial new ones.)"
    return added if any(words in message for words in _ONCE) else ""


def as_cause(error: WorkerFailedError) -> WorkerFailedError:
    """Return an error that is also an instance of the class of the worker's exception.

    So ``except ValueError`` catches a worker's ValueError, with its ``args`` and attributes. Returns ``error`` itself
    where the class cannot be imported here, or is no subclass of Exception (a worker's SystemExit does not end the
    driver).
    """
    kind, args, attributes = _revived(error.error.exception)
    if kind is None or isinstance(error, kind):
        return error
    base = type(error)
    members = {
        "__module__": base.__module__,
        "__doc__": f"A {base.__name__} that is also the {kind.__name__} which was raised on the worker.",
        "__init__": Exception.__init__,
        "__str__": base.__str__,
        "__repr__": base.__repr__,
        "__reduce__": _reduced,
        "_plain": base,
    }
    try:
        both: Any = type(f"{base.__name__}({kind.__name__})", (base, kind), members)
        solid = both  # the built-in class with its memory layout
        while solid.__module__ != "builtins":
            solid = solid.__base__
        made: WorkerFailedError = solid.__new__(both, *(args if issubclass(kind, ExceptionGroup) else ()))
    except Exception:  # noqa: BLE001 - not every class can be inherited from
        return error
    made.args = args
    for name, value in attributes.items():
        with contextlib.suppress(AttributeError, TypeError):  # a property, say
            setattr(made, name, value)
    try:
        made.error = error.error
    except (AttributeError, TypeError):  # its own class has another attribute of that name
        return error
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)
    return made.with_traceback(error.__traceback__)


def _reduced(error: Any) -> tuple[Any, ...]:
    return _remade, (error._plain, error.error, list(getattr(error, "__notes__", ())))


def _remade(plain: type[WorkerFailedError], error: WorkerError, notes: list[str]) -> WorkerFailedError:
    """Rebuild an error that was pickled or copied."""
    made = as_cause(plain(error))
    vars(made).pop("__notes__", None)
    for note in notes:
        made.add_note(note)
    return made


def carried(error: BaseException) -> bytes | None:
    """Return an exception's class, arguments and attributes, pickled for another process.

    What cannot be pickled, or is large, is left out. None where the class itself cannot be, or is no Exception.
    """
    if not isinstance(error, Exception):
        return None
    kind = _dumped(type(error))
    if kind is None:
        return None
    own = dict(vars(error))
    for base in type(error).__mro__:  # what exceptions written in C keep: errno, filename, start
        if base.__module__ == "builtins":
            own |= {name: getattr(error, name, None) for name in vars(base).keys() - _NOT_CARRIED if name[0] != "_"}
    attributes = {name: data for name, value in own.items() if (data := _dumped(value)) is not None}
    return _dumped((kind, _dumped(error.args) or _dumped((str(error),)), attributes), math.inf)


_NOT_CARRIED = frozenset({"args", "obj", "add_note", "with_traceback"})
"""``obj`` of an AttributeError is the object that lacks the attribute: a model, say."""
_MOST_CARRIED = 2**20
"""The largest size of an exception's pickled arguments, or of one attribute, in bytes."""


def _dumped(value: object, most: float = _MOST_CARRIED) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever pickling a user's object raises
        return None
    return data if len(data) <= most else None


def _revived(data: bytes | None) -> tuple[type[Exception] | None, tuple[Any, ...], dict[str, Any]]:
    """Return the class, arguments and attributes from ``carried``; no class where it cannot be imported here."""
    kind: Any = None
    args: Any = None
    attributes: dict[str, Any] = {}
    if data is not None:
        packed_kind, packed_args, packed_attributes = _loaded(data)
        kind, args = _loaded(packed_kind), _loaded(packed_args)
        loaded = {name: _loaded(packed) for name, packed in packed_attributes.items()}
        attributes = {name: value for name, value in loaded.items() if value is not None}
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None, (), {}
    return kind, args if isinstance(args, tuple) else (), attributes


def _loaded(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - a module that this process cannot import, or whatever a user's object raises
        return None


def lost_data(error: BaseException | None) -> bool:
    """Tell whether an error follows from the end of an actor, such as a dataset's, which ends with rank 0."""
    while error is not None:
        if isinstance(error, RayActorError):
            return True
        error = error.__cause__ or error.__context__
    return False
