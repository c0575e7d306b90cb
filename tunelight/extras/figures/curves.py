"""Figures over time: the best value so far, and every trial's learning curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from tunelight.extras.figures.data import (
    BEST,
    COLOURS,
    SCALE,
    Values,
    axis_of,
    chosen_metric,
    failed_in,
    figure,
    judged_by,
    nothing,
    progress,
    rung_names,
    rung_reached,
    scatter,
    text,
    values_of,
)
from tunelight.record import metric_value, ranked
from tunelight.results.words import counted, ordinal

if TYPE_CHECKING:
    from tunelight.extras.figures.data import Sweep, Values
    from tunelight.results.trial import TrialResult


_MOST_POINTS: Final = 120_000
"""Of all curves together; above it, they are thinned out evenly, except for first, best and last points."""


def history(results: Sweep, metric: str | None = None, mode: str | None = None) -> go.Figure:
    """Draw each trial's best value, in order of creation, and the best of the sweep so far.

    Args:
        metric, mode: which; by default the sweep's. Raises: MetricError for a metric that nobody reported.
    """
    metric, mode = chosen_metric(results, metric), mode or results.mode
    values = values_of(results, metric, mode)
    there = np.isfinite(values)
    title = f"Optimization history: best {text(metric)} of each trial ({mode} is better)"
    if not there.any():
        return nothing(title, f"No trial has reported a number as {text(metric)} yet.")
    without = len(values) - int(there.sum())
    note = f"without {without} of {counted(len(values), 'trial')}, which reported no number" if without else ""
    made = figure(title, "trial, in order of creation", text(metric), note)
    made.update_yaxes(**axis_of(values[there]))
    kind = scatter(len(values))
    index = np.array([trial.index for trial in results.trials], dtype=np.int32)
    state = np.array([trial.state for trial in results.trials])
    for name in dict.fromkeys(state[there]):
        shown = there & (state == name)
        made.add_trace(
            kind(
                x=index[shown],
                y=values[shown],
                customdata=index[shown],
                mode="markers",
                name=f"{str(name).lower()}: {counted(int(shown.sum()), 'trial')}",
                marker={"color": COLOURS.get(str(name), "#888888"), "size": 7},
                hovertemplate=f"trial %{{x}}: %{{y:.5g}}<extra>{str(name).lower()}</extra>",
            )
        )
    worst = -math.inf if mode == "max" else math.inf
    filled = np.where(there & ~failed_in(results), values, worst)
    best = np.maximum.accumulate(filled) if mode == "max" else np.minimum.accumulate(filled)
    known = np.isfinite(best)
    line = {"color": BEST, "width": 2, "shape": "hv"}
    made.add_trace(
        go.Scatter(x=index[known], y=best[known], mode="lines", name="best so far", line=line, hoverinfo="skip")
    )
    return made


def learning_curves(results: Sweep, metric: str | None = None, mode: str | None = None) -> go.Figure:
    """Draw every trial's reports, coloured by the number of rungs that it reached, or by its state without rungs.

    Args:
        metric, mode: which; by default the sweep's. Raises: MetricError for a metric that nobody reported.
    """
    metric, mode = chosen_metric(results, metric), mode or results.mode
    curves = [(trial, *_curve(trial, metric)) for trial in results.trials]
    curves = [(trial, x, y) for trial, x, y in curves if np.isfinite(y).any()]
    title = f"Learning curves: {text(metric)} at each report"
    if not curves:
        return nothing(title, f"No trial has reported a number as {text(metric)} yet.")
    points = sum(len(y) for _, _, y in curves)
    step = math.ceil(points / _MOST_POINTS)
    note = f"every {ordinal(step)} of {points:,} reports, and each trial's best and last" if step > 1 else ""
    epochs = all(isinstance(report.get("epoch"), int) for trial, _, _ in curves for report in trial.history[:1])
    made = figure(title, "epoch" if epochs else "report", text(metric), note)
    made.update_yaxes(**axis_of(np.concatenate([y for _, _, y in curves])))
    kind = scatter(points)
    for name, colour, members in _groups(results, [trial for trial, _, _ in curves]):
        shown = [(*_thinned(x, y, step, mode), trial.index) for trial, x, y in curves if trial.id in members]
        made.add_trace(
            kind(
                x=np.concatenate([part for x, _, _ in shown for part in (x, x[-1:])]),
                y=np.concatenate([part for _, y, _ in shown for part in (y, [math.nan])]).astype(np.float32),
                customdata=np.repeat([index for *_, index in shown], [len(x) + 1 for x, _, _ in shown]).astype(
                    np.int32
                ),
                mode="lines+markers" if points < 400 else "lines",
                name=f"{name}: {counted(len(shown), 'trial')}",
                line={"color": colour, "width": 1.4},
                marker={"size": 4},
                hovertemplate="trial %{customdata}, %{x}: %{y:.5g}<extra></extra>",
            )
        )
    values = np.where(failed_in(results), math.nan, values_of(results, metric, mode))
    if np.isfinite(values).any():
        winner = results.trials[int(np.nanargmax(values) if mode == "max" else np.nanargmin(values))]
        if (metric, mode) == judged_by(results):
            best = next(iter(ranked(results.record)), winner.id)
            first = results.record.trials[best].repeats or best
            winner = next(trial for trial in results.trials if trial.id == first)
        x, y = _curve(winner, metric)
        made.add_trace(
            kind(
                x=x,
                y=y,
                customdata=np.full(len(x), winner.index, dtype=np.int32),
                mode="lines+markers" if len(x) == 1 else "lines",
                name=f"best: trial {winner.index}",
                line={"color": BEST, "width": 3},
                hoverinfo="skip",
            )
        )
    return made


def _curve(trial: TrialResult, metric: str) -> tuple[Values, Values]:
    x = np.array([progress(report) for report in trial.history], dtype=np.int32)
    found = (metric_value(report, metric) for report in trial.history)
    y = np.array([math.nan if value is None or math.isinf(value) else value for value in found], dtype=float)
    return x, y


def _thinned(x: Values, y: Values, step: int, mode: str) -> tuple[Values, Values]:
    """Keep every ``step``-th point, the first, the best and the last."""
    if step == 1:
        return x, y
    best = int(np.nanargmax(y) if mode == "max" else np.nanargmin(y))
    kept = np.unique([*range(0, len(x), step), best, len(x) - 1])
    return x[kept], y[kept]


def _groups(results: Sweep, trials: list[TrialResult]) -> Iterator[tuple[str, str, set[str]]]:
    """Yield (name, colour, trial ids): by rungs, else by states."""
    rungs = rung_names(results)
    numbers = {trial.id: rung_reached(results, trial.history) for trial in trials}
    if rungs and None not in numbers.values():
        for number in sorted(set(numbers.values()), key=int):  # type: ignore[arg-type]  # none of them is None
            colour = sample_colorscale(SCALE, [0.92 * (number or 0) / len(rungs)])[0]
            name = f"highest rung reached: {rungs[number - 1].removeprefix('rung ')}" if number else "reached no rung"
            yield name, colour, {key for key, found in numbers.items() if found == number}
        return
    for state in dict.fromkeys(trial.state for trial in trials):
        yield state.lower(), COLOURS.get(state, "#888888"), {trial.id for trial in trials if trial.state == state}
