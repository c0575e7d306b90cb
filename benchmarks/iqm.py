"""Interquartile means over seeds, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def iqm(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half."""
    ordered = np.sort(np.asarray(values, dtype=float))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the interquartile mean."""
    given = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(0, len(given), (RESAMPLES, len(given)))
    means = [iqm(given[one]) for one in drawn]
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def shown(values: Sequence[float], digits: int = 1) -> str:
    """Return "mean [low, high]"."""
    low, high = interval(values)
    return f"{iqm(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
