"""Search spaces: declare, validate, load, sample. The domains are Ray Tune's own, under its names."""

from __future__ import annotations

from typing import Any

from tunelight.errors import guess
from tunelight.space.domains import ARGUMENTS
from tunelight.space.space import SearchSpace

__all__ = ["SearchSpace", *ARGUMENTS]  # noqa: PLE0604 - ARGUMENTS holds names


def __getattr__(name: str) -> Any:
    """Hand on a domain of Ray Tune when it is first asked for: importing Ray costs a second."""
    if name not in ARGUMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{guess(name, __all__)}")
    from ray import tune  # noqa: PLC0415 - see above

    return getattr(tune, "grid_search" if name == "grid" else name)
