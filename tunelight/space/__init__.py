"""Search spaces: declare, validate, load, sample. The domains are Ray Tune's own, under its names, and ``ordinal``."""

from __future__ import annotations

from typing import Any

from tunelight.errors import guess
from tunelight.space.domains import ARGUMENTS
from tunelight.space.shipped import names
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
    from tunelight.space.make import maker  # see above

    found = globals()[name] = maker("grid_search" if name == "grid" else name)
    return found
