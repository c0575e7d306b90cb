"""Ray Tune Searchers that suggest configurations, and the SearchAlgorithm of a sweep that asks them."""

from __future__ import annotations

from tunelight.searchers.random import GridSearcher, RandomSearcher, TrackingSearcher
from tunelight.searchers.sweep import Repetitions, ResumedTrial, ResumeState, SweepSearch, created_at_least, teach

__all__ = [
    "ResumedTrial",
    "TrackingSearcher",
    "GridSearcher",
    "RandomSearcher",
    "Repetitions",
    "ResumeState",
    "SweepSearch",
    "created_at_least",
    "teach",
]
