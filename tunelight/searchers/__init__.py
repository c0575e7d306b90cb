"""Ray Tune Searchers that suggest configurations, and the SearchAlgorithm of a sweep that asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunelight.searchers.random import GridSearcher, RandomSearcher, TrackingSearcher
from tunelight.searchers.sweep import Repetitions, ResumedTrial, ResumeState, SweepSearch, created_at_least, teach

if TYPE_CHECKING:
    from tunelight.searchers.optuna import OptunaSearcher

__all__ = [
    "ResumedTrial",
    "TrackingSearcher",
    "GridSearcher",
    "OptunaSearcher",
    "RandomSearcher",
    "Repetitions",
    "ResumeState",
    "SweepSearch",
    "created_at_least",
    "teach",
]


def __getattr__(name: str) -> Any:
    """Import on demand what is slow to import: Optuna takes half a second."""
    if name == "OptunaSearcher":
        from tunelight.searchers.optuna import OptunaSearcher

        return OptunaSearcher
    raise AttributeError(f"module 'tunelight.searchers' has no attribute {name!r}")
