"""The trials that no other beats in everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from tunelight.errors import MetricError
from tunelight.record import ERROR
from tunelight.results.figures.data import best_report, check_metric, failed_in, judged_by, values_of
from tunelight.results.figures.style import BEST, COLOURS, Values, axis_of, figure, nothing, scatter, text
from tunelight.results.words import counted

if TYPE_CHECKING:
    from tunelight.results.figures.sweep import Sweep


def pareto(
    results: Sweep,
    metric: str | Sequence[str] | None = None,
    mode: str | Sequence[str] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
) -> go.Figure:
    """Draw trials by two metrics, and the front: whom none beats in one and equals in the other.

    A trial is drawn by both values of one report, its best by the sweep's first metric, as in ``results.pareto()``. One
    metric is drawn by each trial's best value, against the seconds that the trial was trained. Trials that failed are
    drawn, but are not on the front.

    Args:
        metric: one name or two; by default the sweep's first two, or its only one.
        mode: "min" or "max", for both or for each; by default the sweep's.
        metrics, modes: the same by other names.

    Raises: MetricError for a metric that nobody reported, or more than two.
    """
    chosen, ways, values = _axes(results, metrics if metric is None else metric, modes if mode is None else mode)
    title = f"Pareto front: {text(chosen[0])} ({ways[0]}) and {text(chosen[1])} ({ways[1]})"
    there = np.isfinite(values[0]) & np.isfinite(values[1])
    if not there.any():
        return nothing(title, "No trial has a number in both yet.")
    index = np.array([trial.index for trial in results.trials])[there]
    x, y, failed = values[0][there], values[1][there], failed_in(results)[there]
    front = np.zeros(len(x), dtype=bool)
    front[~failed] = front_of(np.stack([x, y], axis=1)[~failed], ways)
    more = len(results.objectives) - 2
    note = f"on the front: {int(front.sum())} of {counted(len(x), 'trial')}"
    if metric is None and metrics is None and more > 0:
        note += f"; the sweep has {more} more metric{'s' if more > 1 else ''}, which results.pareto() counts too"
    made = figure(title, text(chosen[0]), text(chosen[1]), note)
    made.update_xaxes(**axis_of(x))
    made.update_yaxes(**axis_of(y))
    kinds = [
        ("others", ~front & ~failed, "#9aa7b5", 6),
        ("failed", failed, COLOURS[ERROR], 6),
        ("front", front, BEST, 9),
    ]
    for name, shown, colour, size in kinds:
        if name == "failed" and not shown.any():
            continue
        made.add_trace(
            scatter(len(x))(
                x=x[shown],
                y=y[shown],
                customdata=index[shown],
                mode="markers",
                name=f"{name}: {counted(int(shown.sum()), 'trial')}",
                marker={"color": colour, "size": size, "symbol": "x" if name == "failed" else "circle"},
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
    results: Sweep, metric: str | Sequence[str] | None, mode: str | Sequence[str] | None
) -> tuple[list[str], list[str], list[Values]]:
    """Return names, modes and values of the two axes."""
    first, how = judged_by(results)
    known: dict[str, str] = dict(results.objectives)
    names = [metric] if isinstance(metric, str) else list(metric or known or [first])
    if metric is None:
        names = names[:2]
    if mode is None:
        ways = [known.get(name, how) for name in names]
    else:
        ways = [mode] * len(names) if isinstance(mode, str) else list(mode)
    if len(names) not in (1, 2) or len(ways) != len(names) or not set(ways) <= {"min", "max"}:
        raise MetricError(
            f"A Pareto front is drawn of one or two metrics, each 'min' or 'max', but metric={names} and mode={ways} "
            "were given. Name two of each, or one that is drawn against the time of training."
        )
    chosen = [check_metric(results, name) for name in names]
    if len(chosen) == 1:
        seconds = np.array([trial.seconds if trial.seconds > 0 else math.nan for trial in results.trials], dtype=float)
        return [*chosen, "seconds of training"], [*ways, "min"], [values_of(results, chosen[0], ways[0]), seconds]
    return chosen, ways, [best_report(results, name) for name in chosen]
