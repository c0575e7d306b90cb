"""Ray Tune's domain functions, with checks of their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ray import tune

from tunelight.errors import ArgumentError, SpaceError
from tunelight.space.domains import ARGUMENTS, holds_domain, wrong_argument


@functools.cache
def maker(name: str) -> Callable[..., Any]:
    """Return Ray Tune's function for a domain (``uniform``), with checked arguments; it returns Ray Tune's domain.

    It raises SpaceError for a value that no domain can be made of, and ArgumentError for wrong arguments.
    """
    make = getattr(tune, name)
    signature = inspect.signature(make)
    names = ARGUMENTS[name]

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if names == ("values",) and len(args) == 1 and isinstance(args[0], str):
            raise SpaceError(f"tl.{name} takes a list of values, not the text {args[0]!r}: tl.{name}([{args[0]!r}]).")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            one = f"tl.{name}([{', '.join(map(repr, args))}])" if names == ("values",) and len(args) > 1 else None
            hint = f"Give the values as one list: {one}." if one else f"It takes: {', '.join(names)}."
            raise ArgumentError(f"tl.{name}() cannot be called so: {error}. {hint}") from None
        if names == ("values",) and (wrong := holds_domain(name, next(iter(bound.arguments.values())))) is not None:
            raise SpaceError(f"tl.{name}: {wrong}")
        try:
            return make(*args, **kwargs)
        except Exception as error:
            wrong = wrong_argument(name, dict(zip(names, bound.arguments.values(), strict=False)))
            raise SpaceError(f"tl.{name}: {wrong or error}") from error

    made.__module__ = "tunelight.space"  # where pickle finds it
    made.__qualname__ = name
    return made
