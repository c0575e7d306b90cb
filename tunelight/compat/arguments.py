"""Error messages for calls with unknown arguments: they list what is taken, and guess at a misspelt name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from tunelight.errors import ArgumentError, SettingsError, SpaceError, guess

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function, or an ``__init__``, explain arguments which it does not take.

    The signature stays the same for editors and ``inspect``. The decorated function raises ArgumentError, which is a
    TypeError too. Errors of settings and spaces have the traceback of the caller, without tunelight's own frames.
    """
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
    if unknown := [name for name in given if name not in valid]:
        raise ArgumentError(_unknown(who, unknown, valid))


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
    unknown = [word for word in kwargs if word not in valid]
    domain = next((word for word in unknown if _is_domain(kwargs[word])), None)
    if domain is not None:
        return (
            f"{who} takes no {domain}=, and what is given there is a domain. Domains belong to the search space, a "
            f"dict, which is the first argument of tl.run and tl.SearchSpace: {{{domain!r}: ...}}."
        )
    if unknown and len(valid) == len(taken):
        return _unknown(who, unknown, valid)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_position = [argument.name for argument in taken if argument.kind in positional]
    came = len(args) - ("self" in signature.parameters)
    if came > len(by_position):
        return (
            f"{who} takes {', '.join(by_position) or 'nothing'} by position, and {came} arguments came so. Give the "
            f"others by name. It takes: {', '.join(valid)}."
        )
    return f"{who} cannot be called so: {reason}. It takes: {', '.join(valid)}."


def _is_domain(value: Any) -> bool:
    return any(
        base.__module__ == "ray.tune.search.sample" and base.__name__ == "Domain" for base in type(value).__mro__
    )
