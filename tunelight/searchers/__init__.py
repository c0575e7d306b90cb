"""Ray Tune Searchers that suggest configurations."""

from __future__ import annotations

from tunelight.searchers.random import GridSearcher, RandomSearcher, TrackingSearcher

__all__ = [
    "TrackingSearcher",
    "GridSearcher",
    "RandomSearcher",
]
