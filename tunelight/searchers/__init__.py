"""Where configurations come from: Ray Tune Searchers, and the sweep's own way of asking them."""

from tunelight.searchers.random import RandomSearcher
from tunelight.searchers.sweep import SweepSearch

__all__ = ["RandomSearcher", "SweepSearch"]
