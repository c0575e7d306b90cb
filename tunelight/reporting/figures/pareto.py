"""The trials that no other beats in everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from tunelight.errors import MetricError
from tunelight.reporting.figures.data import check_metric, judged_by, values_of
from tunelight.reporting.figures.style import BEST, Values, axis_type, figure, nothing, scatter, text

if TYPE_CHECKING:
    from tunelight.results import SweepResults


def pareto(
    results: SweepResults, metrics: Sequence[str] | None = None, modes: Sequence[str] | None = None
) -> go.Figure:
    """Draw trials by two metrics (each one's best), and the front: whom none beats in one and equals in the other.

    Args:
        metrics, modes: two names, "min" or "max" each; by default the sweep's first two, and where it has only one,
            that against the seconds that a trial was trained.

    Raises: MetricError for a metric that nobody reported, or another number of them than two.
    """
    chosen, ways, values = _axes(results, metrics, modes)
    title = f"Pareto front: {text(chosen[0])} ({ways[0]}) and {text(chosen[1])} ({ways[1]})"
    there = np.isfinite(values[0]) & np.isfinite(values[1])
    if not there.any():
        return nothing(title, "No trial has a number in both yet.")
    index = np.array([trial.index for trial in results.trials])[there]
    x, y = values[0][there], values[1][there]
    front = front_of(np.stack([x, y], axis=1), ways)
    made = figure(title, text(chosen[0]), text(chosen[1]), f"{int(front.sum())} of {len(x)} trials are on the front")
    made.update_xaxes(type=axis_type(x))
    made.update_yaxes(type=axis_type(y))
    for name, shown, colour, size in (("others", ~front, "#9aa7b5", 6), ("front", front, BEST, 9)):
        made.add_trace(
            scatter(len(x))(
                x=x[shown],
                y=y[shown],
                customdata=index[shown],
                mode="markers",
                name=f"{name} ({int(shown.sum())})",
                marker={"color": colour, "size": size},
                hovertemplate="trial %{customdata}: %{x:.5g}, %{y:.5g}<extra></extra>",
            )
        )
    order = np.argsort(x[front])
    line = {"color": BEST, "width": 1, "dash": "dot"}
    made.add_trace(
        go.Scatter(x=x[front][order], y=y[front][order], mode="lines", line=line, hoverinfo="skip", showlegend=False)
    )
    return made


def front_of(values: Values, modes: Sequence[str]) -> Values:
    """Return which rows no other row beats: as good in every column, and better in one. O(n log n) for two columns."""
    losses = values * np.array([-1.0 if mode == "max" else 1.0 for mode in modes])
    on = np.zeros(len(losses), dtype=bool)
    lowest, before = math.inf, None
    for row in np.lexsort((losses[:, 1], losses[:, 0])):
        point = tuple(losses[row])
        if point[1] < lowest or point == before:  # equal ones beat nobody
            on[row], lowest, before = True, point[1], point
    return on


def _axes(
    results: SweepResults, metrics: Sequence[str] | None, modes: Sequence[str] | None
) -> tuple[list[str], list[str], list[Values]]:
    first, how = judged_by(results)
    if metrics is None and isinstance(results.metric, list | tuple) and len(results.metric) > 1:
        metrics = list(results.metric)[:2]
        modes = modes or (list(results.mode)[:2] if isinstance(results.mode, list | tuple) else None)
    if metrics is None:
        seconds = np.array([trial.seconds if trial.seconds > 0 else math.nan for trial in results.trials], dtype=float)
        return [first, "seconds of training"], [how, "min"], [values_of(results), seconds]
    ways = list(modes) if modes is not None else [how] * len(metrics)
    if len(metrics) != 2 or len(ways) != 2 or not set(ways) <= {"min", "max"}:
        raise MetricError(
            f"A Pareto front is drawn of two metrics, each 'min' or 'max', but metrics={list(metrics)} and "
            f"modes={ways} were given. Name two of each."
        )
    chosen = [check_metric(results, metric) for metric in metrics]
    return chosen, ways, [values_of(results, metric, way) for metric, way in zip(chosen, ways, strict=True)]
