"""Where configurations come from: Ray Tune Searchers, and the sweep's own way of asking them."""

from tunelight.searchers.random import RandomSearcher
from tunelight.searchers.sweep import Again, Start, SweepSearch, teach

__all__ = ["Again", "RandomSearcher", "Start", "SweepSearch", "teach"]
