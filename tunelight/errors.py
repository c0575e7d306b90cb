"""Errors that users see. Messages say what was expected, what was given and what to do."""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    import inspect

    from tunelight.messages import WorkerError


class TunelightError(Exception):
    """Base class of tunelight's errors."""


class SpaceError(TunelightError, ValueError):
    """A search space is invalid."""


class SettingsError(TunelightError, ValueError):
    """A setting of a sweep is unknown or invalid, or contradicts another."""


class ArgumentError(SettingsError, TypeError):
    """A function or class was called with an unknown argument, or without a required one."""


class TrainFunctionError(TunelightError, TypeError):
    """The train function, model or data module cannot be used as given."""


class ScriptError(TunelightError, RuntimeError):
    """A training script exited with a code other than 0."""


class ImportPathError(TunelightError, ImportError):
    """An import path, such as one in a YAML file, cannot be imported."""


class MetricError(TunelightError, KeyError):
    """A metric was never logged or reported."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StrategyError(TunelightError, RuntimeError):
    """A Trainer cannot train on its gang."""


class ResourceError(TunelightError, RuntimeError):
    """A gang cannot be reserved on this cluster."""


class HeadLostError(TunelightError, ConnectionError):
    """The head of the Ray cluster was lost, which ended the sweep; its record remains."""


class CommandError(TunelightError, RuntimeError):
    """A sweep that runs refused a command, or did not answer."""


class StorageError(TunelightError, OSError):
    """A sweep's folder cannot be read or written, exists already, or is not that of a sweep."""


class ContextError(TunelightError, RuntimeError):
    """A function that works only inside a trial was called outside of one."""


class DataError(TunelightError, RuntimeError):
    """A dataset cannot be read, or cannot be split among the ranks of a gang."""


class CheckpointError(TunelightError, RuntimeError):
    """A checkpoint is missing, torn, or cannot be written."""


class ReportError(TunelightError, RuntimeError):
    """A figure cannot be drawn because a dependency is missing."""


class NoResultError(TunelightError, RuntimeError):
    """The sweep does not have the result that was asked for (if no trial reported, for example)."""


class WorkerFailedError(TunelightError, RuntimeError):
    """Training failed on a worker; ``error`` has the rank, the node and the traceback."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class TrialError(WorkerFailedError):
    """A trial failed on one of its workers."""


class SweepFailedError(WorkerFailedError):
    """A sweep ended early because its first trials all failed with the same ``error``; ``folder`` is its folder."""

    def __init__(self, error: WorkerError, message: str, folder: str) -> None:
        super().__init__(error)
        self.args = (error, message, folder)
        self.message = message
        self.folder = folder

    def __str__(self) -> str:
        return self.message


class GangError(TunelightError, RuntimeError):
    """A gang's workers could not be started or connected, or did not answer in time.

    ``cause`` is "exception" if the user's own code caused it (an init_hook, a runtime environment), so that trying
    again is of no use.
    """

    def __init__(self, message: str, cause: Literal["exception", "unresponsive"] = "unresponsive") -> None:
        super().__init__(message, cause)
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])


class PreemptedError(SystemExit):
    """The sweep was told to end by SIGTERM, its trials have left with their checkpoints, and ``resume=True`` goes on.

    It is a SystemExit with exit code 75 (EX_TEMPFAIL), by which a cluster's job is started again: a script need not
    catch it, and ``except Exception`` does not. ``results`` are those of so far; None where no trial had begun.
    """

    def __init__(self, results: Any) -> None:
        super().__init__(os.EX_TEMPFAIL)
        self.results = results


class TrialStopped(BaseException):
    """Raised by ``report`` on every rank when the trial is to stop.

    It is a BaseException so that ``except Exception`` in training code does not catch it.
    """


@contextlib.contextmanager
def placed(where: str) -> Iterator[None]:
    """Begin the messages of errors with the place of what they are about, "space.yaml:3:5: "."""
    try:
        yield
    except TunelightError as error:
        raise type(error)(f"{where}{error}") from error


def guess(name: Any, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the valid name that is nearest to a wrong one; empty where none is near.

    Nearest is a name of which all words are in the wrong one: ``workers`` and ``num_workers``. Near is also what one of
    them abbreviates: ``learning_rate`` and ``lr``.
    """
    valid, name = list(valid), str(name)
    within = sorted((key for key in valid if f"_{key}_" in f"_{name}_"), key=len)[-1:]
    close = within or difflib.get_close_matches(name, valid, n=1) or [key for key in valid if _abbreviates(key, name)]
    return f" Did you mean {close[0]!r}?" if close else ""


def _abbreviates(candidate: str, other: str) -> bool:
    """Tell whether a name is made of the other's initials; only the last parts of dotted names may differ."""
    (group, _, short), (same, _, long) = sorted(
        (name.rpartition(".") for name in (candidate, other)), key=lambda it: len(it[2])
    )
    words = re.findall(r"[A-Z]?[a-z0-9]+", long)
    return (
        len(words) > 1
        and short == "".join(word[0] for word in words).lower()
        and (group == same or "" in (group, same))
    )


def unknown(what: str, name: Any, valid: Iterable[str], hint: str | None = None, listed: str = "There are") -> str:
    """Return the message for an unknown name: "There is no scheduler 'ahsa'. Did you mean 'asha'? There are: ...".

    Args:
        what: how it begins, "There is no scheduler".
        name: what was given.
        valid: what could have been.
        hint: replaces the guess; begins with a space.
        listed: introduces the valid names.
    """
    valid = list(valid)
    hint = guess(name, valid) if hint is None else hint
    return f"{what} {name!r}.{hint} {listed}: {', '.join(valid) or 'none'}."


def refuse_unknown(
    what: str,
    names: Iterable[Any],
    valid: Iterable[str],
    listed: str = "There are",
    kind: type[TunelightError] = SettingsError,
) -> None:
    """Raise ``kind`` for the first of ``names`` that is not in ``valid``, with the message of :func:`unknown`."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            raise kind(unknown(what, name, valid, listed=listed))


def first_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first names and the number of the others: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def last_line(text: object) -> str:
    """Return the last line of an error or a text that is not blank; empty where there is none."""
    return next((line.strip() for line in reversed(str(text).splitlines()) if line.strip()), "")


# --- Error messages for calls with unknown arguments: they list what is taken, and guess at a misspelt name

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function, or an ``__init__``, explain arguments which it does not take.

    The signature stays the same for editors and ``inspect``. The decorated function raises ArgumentError, which is a
    TypeError too. Errors of settings and spaces have the traceback of the caller, without tunelight's own frames.
    """
    import inspect  # importing tunelight does without

    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(_wrong_call(function, signature, args, kwargs, str(error))) from None
        try:
            return function(*args, **kwargs)
        except (SettingsError, SpaceError) as error:
            raise error.with_traceback(None) from error.__cause__  # shown at the caller's line, and no deeper

    return call


def known_fields(kind: type[T]) -> type[T]:
    """Do for a dataclass what :func:`known_arguments` does for a function."""
    setattr(kind, "__init__", known_arguments(kind.__init__))  # noqa: B010 - mypy takes it for unsafe
    return kind


def check_keywords(who: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise ArgumentError if a keyword in ``given`` is not in ``valid``."""
    valid = list(valid)
    if odd := [name for name in given if name not in valid]:
        raise ArgumentError(_unknown(who, odd, valid))


def _unknown(who: str, names: Iterable[str], valid: list[str]) -> str:
    text = " ".join(f"{who} takes no {name}=.{guess(name, valid)}" for name in names)
    return f"{text} It takes: {', '.join(valid)}."


def _wrong_call(
    function: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str
) -> str:
    """Return the message for a call that does not fit its signature."""
    name = function.__qualname__.removesuffix(".__init__")
    who = f"tl.{name}" if name != function.__qualname__ else f"tl.{name}()"
    taken = [argument for argument in signature.parameters.values() if argument.name != "self"]
    valid = [
        argument.name for argument in taken if argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)
    ]
    odd = [word for word in kwargs if word not in valid]
    domain = next((word for word in odd if is_domain(kwargs[word])), None)
    if domain is not None:
        return (
            f"{who} takes no {domain}=, and what is given there is a domain. Domains belong to the search space, a "
            f"dict, which is the first argument of tl.run and tl.SearchSpace: {{{domain!r}: ...}}."
        )
    if odd and len(valid) == len(taken):
        return _unknown(who, odd, valid)
    by_position = [arg.name for arg in taken if arg.kind in (arg.POSITIONAL_ONLY, arg.POSITIONAL_OR_KEYWORD)]
    came = len(args) - ("self" in signature.parameters)
    if came > len(by_position):
        return (
            f"{who} takes {', '.join(by_position) or 'nothing'} by position, and {came} arguments came so. Give the "
            f"others by name. It takes: {', '.join(valid)}."
        )
    return f"{who} cannot be called so: {reason}. It takes: {', '.join(valid)}."


def is_domain(value: Any) -> bool:
    """Tell whether a value is a domain of Ray Tune's, without importing Ray."""
    return any(
        base.__module__ == "ray.tune.search.sample" and base.__name__ == "Domain" for base in type(value).__mro__
    )


def whole(name: str, value: Any, least: int = 1, most: float = math.inf) -> int:
    """Check a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        bounds = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
        raise SettingsError(f"{name} must be a whole number {bounds}, not {value!r}.")
    return int(value)


def number(name: str, value: Any, zero: bool = False) -> float:
    """Check a finite number above 0, or also 0."""
    bounds = "0 or more" if zero else "more than 0"
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise SettingsError(f"{name} must be a number, {bounds}, not {value!r}.")
    if value < 0 or (value == 0 and not zero):
        raise SettingsError(f"{name} must be {bounds}, not {value!r}.")
    return int(value) if isinstance(value, Integral) else float(value)
