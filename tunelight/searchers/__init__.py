"""Ray Tune Searchers that suggest configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunelight.searchers.random import GridSearcher, RandomSearcher, TrackingSearcher

if TYPE_CHECKING:
    from tunelight.searchers.optuna import OptunaSearcher

__all__ = [
    "TrackingSearcher",
    "GridSearcher",
    "OptunaSearcher",
    "RandomSearcher",
]


def __getattr__(name: str) -> Any:
    """Import on demand what is slow to import: Optuna takes half a second."""
    if name == "OptunaSearcher":
        from tunelight.searchers.optuna import OptunaSearcher

        return OptunaSearcher
    raise AttributeError(f"module 'tunelight.searchers' has no attribute {name!r}")
