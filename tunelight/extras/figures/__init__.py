"""Figures of a sweep: functions from results to a plotly ``Figure``. Importing this imports plotly.

>>> from tunelight.extras.figures import FIGURES, history
>>> history(results).show()                                     # doctest: +SKIP
>>> tunelight.reporting.write_image(history(results), "a.png")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tunelight.extras.figures.curves import history, learning_curves
from tunelight.extras.figures.parameters import importances, slices

__all__ = [
    "FIGURES",
    "history",
    "importances",
    "learning_curves",
    "slices",
]

FIGURES: Final[dict[str, Callable[..., Any]]] = {
    draw.__name__: draw for draw in (history, learning_curves, importances, slices)
}
"""By name, in the order of a report. Each takes the results (``SweepResults``) and returns a ``Figure``; each draws
also a sweep of one trial, or of none that has reported, and then says what is missing."""
