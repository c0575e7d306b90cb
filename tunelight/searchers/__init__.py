"""Where configurations come from: Ray Tune Searchers, and the sweep's own way of asking them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunelight.searchers.grid import GridSearcher
from tunelight.searchers.random import RandomSearcher
from tunelight.searchers.sweep import ResumedTrial, ResumeState, SweepSearch, TrackingSearcher, teach

if TYPE_CHECKING:
    from tunelight.searchers.optuna import OptunaSearcher

__all__ = [
    "ResumedTrial",
    "TrackingSearcher",
    "GridSearcher",
    "OptunaSearcher",
    "RandomSearcher",
    "ResumeState",
    "SweepSearch",
    "teach",
]


def __getattr__(name: str) -> Any:
    """Import what costs an import of its own when it is asked for: Optuna takes half a second."""
    if name == "OptunaSearcher":
        from tunelight.searchers.optuna import OptunaSearcher

        return OptunaSearcher
    raise AttributeError(f"module 'tunelight.searchers' has no attribute {name!r}")
