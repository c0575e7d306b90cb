"""Search spaces: declare, validate, load, sample. The domains are Ray Tune's own, under its names, and ``ordinal``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tunelight.errors import ArgumentError, SpaceError, guess, placed
from tunelight.space.files import names
from tunelight.space.kinds import KINDS, refuse_domains
from tunelight.space.space import SearchSpace

_DOMAINS = tuple(kind.name for kind in KINDS.values() if kind.in_python)

__all__ = ["SearchSpace", "names", *_DOMAINS]  # noqa: PLE0604 - _DOMAINS holds names


def __getattr__(name: str) -> Any:
    """Hand on a domain when it is first asked for: importing Ray costs a second."""
    if name not in _DOMAINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{guess(name, __all__)}")
    if name == "ordinal":
        from tunelight.space.more_domains import ordinal  # see above

        return ordinal
    found = globals()[name] = maker("grid_search" if name == "grid" else name)
    return found


@functools.cache
def maker(name: str) -> Callable[..., Any]:
    """Return Ray Tune's function for a domain (``uniform``), with checked arguments; it returns Ray Tune's domain.

    It raises SpaceError for a value that no domain can be made of, and ArgumentError for wrong arguments.
    """
    from ray import tune  # a second

    make = getattr(tune, name)
    signature = inspect.signature(make)
    kind = KINDS[name]
    is_list = kind.arguments == ("values",)

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if is_list and len(args) == 1 and isinstance(args[0], str):
            raise SpaceError(f"tl.{name} takes a list of values, not the text {args[0]!r}: tl.{name}([{args[0]!r}]).")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            listed = f"tl.{name}([{', '.join(map(repr, args))}])" if is_list and len(args) > 1 else None
            hint = f"Give the values as one list: {listed}." if listed else f"It takes: {', '.join(kind.arguments)}."
            raise ArgumentError(f"tl.{name}() cannot be called so: {error}. {hint}") from None
        with placed(f"tl.{name}: "):
            if is_list:
                refuse_domains(name, next(iter(bound.arguments.values())))
            try:
                return make(*args, **kwargs)
            except Exception as error:
                kind.check(dict(zip(kind.arguments, bound.arguments.values(), strict=False)))
                raise SpaceError(str(error)) from error

    made.__module__ = "tunelight.space"  # where pickle finds it
    made.__qualname__ = name
    return made
