"""Search spaces: declare, validate, load, sample. The domains are Ray Tune's own, under its names, and ``ordinal``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tunelight.errors import ArgumentError, SpaceError, guess
from tunelight.space.domains import ARGUMENTS, holds_domain, wrong_argument
from tunelight.space.files import names
from tunelight.space.space import SearchSpace

_DOMAINS = tuple(name for name in ARGUMENTS if name not in ("fixed", "wandb_parameter"))

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
    taken = ARGUMENTS[name]

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if taken == ("values",) and len(args) == 1 and isinstance(args[0], str):
            raise SpaceError(f"tl.{name} takes a list of values, not the text {args[0]!r}: tl.{name}([{args[0]!r}]).")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            one = f"tl.{name}([{', '.join(map(repr, args))}])" if taken == ("values",) and len(args) > 1 else None
            hint = f"Give the values as one list: {one}." if one else f"It takes: {', '.join(taken)}."
            raise ArgumentError(f"tl.{name}() cannot be called so: {error}. {hint}") from None
        if taken == ("values",) and (wrong := holds_domain(name, next(iter(bound.arguments.values())))) is not None:
            raise SpaceError(f"tl.{name}: {wrong}")
        try:
            return make(*args, **kwargs)
        except Exception as error:
            wrong = wrong_argument(name, dict(zip(taken, bound.arguments.values(), strict=False)))
            raise SpaceError(f"tl.{name}: {wrong or error}") from error

    made.__module__ = "tunelight.space"  # where pickle finds it
    made.__qualname__ = name
    return made
