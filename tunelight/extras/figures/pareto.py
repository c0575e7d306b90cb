"""The trials that no other beats in everything, drawn by Optuna."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from tunelight.errors import MetricError
from tunelight.extras.figures.data import chosen_metric, failed_in, values_of
from tunelight.extras.figures.studies import study_of
from tunelight.extras.figures.style import BEST, COLOURS, axis_of, nothing, smooth, styled, text
from tunelight.record import ERROR, metric_value
from tunelight.results.words import counted

if TYPE_CHECKING:
    from tunelight.extras.figures.data import Sweep
    from tunelight.extras.figures.style import Values


def pareto(
    results: Sweep, metric: str | Sequence[str] | None = None, mode: str | Sequence[str] | None = None
) -> go.Figure:
    """Draw trials by two metrics, and the front: the trials that no other beats in one and equals in the other.

    A trial is drawn by both values of one report, its best by the sweep's first metric, as in ``results.pareto()``. One
    metric is drawn by each trial's best value, against the seconds that the trial was trained. Trials that failed are
    drawn, but are not on the front.

    Args:
        metric: one name or two; by default the sweep's first two, or its only one.
        mode: "min" or "max", for both or for each; by default the sweep's.

    Raises: MetricError for a metric that nobody reported, or more than two.
    """
    names, modes, values = _axes(results, metric, mode)
    title = f"Pareto front: {text(names[0])} ({modes[0]}) and {text(names[1])} ({modes[1]})"
    there = np.isfinite(values).all(axis=1)
    if not there.any():
        return nothing(title, "No trial has a number in both yet.")
    from optuna.visualization import plot_pareto_front  # a second that only these figures need

    values, failed = values[there], failed_in(results)[there]
    index = np.array([trial.index for trial in results.trials], dtype=np.int32)[there]
    with study_of(values, modes, failed=failed if failed.any() else None) as study:
        made = smooth(plot_pareto_front(study, target_names=[text(name) for name in names]))
    front, others, *broken = reversed(made.data)
    groups = [(front, "front", front.marker.color, BEST, "circle", 9)]
    groups += [(others, "others", others.marker.color, "#9aa7b5", "circle", 6)]
    groups += [(trace, "failed", np.flatnonzero(failed), COLOURS[ERROR], "x", 6) for trace in broken]
    for trace, name, numbers, colour, symbol, size in groups:
        trace.marker = {"color": colour, "symbol": symbol, "size": size}
        trace.update(
            customdata=index[list(numbers)],
            name=f"{name}: {counted(len(numbers), 'trial')}",
            showlegend=True,
            text=None,
            hovertemplate="trial %{customdata}: %{x:.5g}, %{y:.5g}<extra></extra>",
        )
    more = len(results.objectives) - 2
    note = f"on the front: {len(front.x)} of {counted(len(values), 'trial')}"
    if metric is None and more > 0:
        note += f"; the sweep has {more} more metric{'s' if more > 1 else ''}, which results.pareto() counts too"
    made.update_xaxes(**axis_of(values[:, 0]))
    made.update_yaxes(**axis_of(values[:, 1]))
    return styled(made, title, note)


def _axes(
    results: Sweep, metric: str | Sequence[str] | None, mode: str | Sequence[str] | None
) -> tuple[list[str], list[str], Values]:
    """Return names and modes of the two axes, and each trial's values."""
    modes_of = dict(results.objectives)
    names = [metric] if isinstance(metric, str) else list(metric or [*modes_of][:2] or [chosen_metric(results, None)])
    modes = list(mode or ()) if not isinstance(mode, str) else [mode] * len(names)
    modes = modes or [modes_of.get(name, results.mode) for name in names]
    if len(names) not in (1, 2) or len(modes) != len(names) or not set(modes) <= {"min", "max"}:
        raise MetricError(
            f"A Pareto front is drawn of one or two metrics, each 'min' or 'max', but metric={names} and mode={modes} "
            "were given. Name two of each, or one that is drawn against the time of training."
        )
    for name in names:
        chosen_metric(results, name)
    if len(names) == 1:
        columns = [values_of(results, names[0], modes[0]), [trial.seconds or math.nan for trial in results.trials]]
        names, modes = [*names, "seconds of training"], [*modes, "min"]
    else:
        columns = [[metric_value(trial.metrics, name) for trial in results.trials] for name in names]
    return names, modes, np.array(columns, dtype=float).T
