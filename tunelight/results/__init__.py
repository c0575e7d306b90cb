"""What a sweep found, read from its folder: the best, a table, models, and files that others train the winner with."""

from __future__ import annotations

from tunelight.results.sweep import SweepResults
from tunelight.results.trial import TrialResult

__all__ = ["SweepResults", "TrialResult"]
