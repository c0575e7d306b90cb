"""Figures that compare sweeps: the best value so far against what was spent for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import plotly.graph_objects as go

from tunelight.results.figures.data import judged_by
from tunelight.results.figures.spending import improvements, spending
from tunelight.results.figures.style import PALETTE, axis_of, figure, nothing, text
from tunelight.results.figures.timeline import unit_of

if TYPE_CHECKING:
    from tunelight.results.figures.data import Sweep

_DASHES: Final = ("solid", "dash", "dot", "dashdot")
_HOUR: Final = 3600.0


def colour_of(number: int) -> str:
    """Return the colour of a sweep by its place among the compared; from the ninth on, lines are dashed."""
    return PALETTE[number % len(PALETTE)]


def best_by_time(sweeps: Mapping[str, Sweep]) -> go.Figure:
    """Draw each sweep's best value so far against the time in which its trials ran; ``sweeps`` are by their names."""
    longest = max((spending(results).total[0] for results in sweeps.values()), default=0.0)
    unit, seconds = unit_of(longest)
    return _draw(sweeps, "against wall time", f"{unit} in which trials ran", "wall", seconds)


def best_by_workers(sweeps: Mapping[str, Sweep]) -> go.Figure:
    """Draw each sweep's best value so far against the worker-hours that its trials held."""
    return _draw(sweeps, "against worker-hours", "worker-hours held", "workers", _HOUR)


def best_by_trials(sweeps: Mapping[str, Sweep]) -> go.Figure:
    """Draw each sweep's best value so far against the number of trials that had begun."""
    return _draw(sweeps, "against trials", "trials begun", "trials", 1)


def _draw(sweeps: Mapping[str, Sweep], what: str, axis: str, of: str, unit: float) -> go.Figure:
    metric, mode = judged_by(next(iter(sweeps.values())))
    title = f"Best {text(metric)} so far, {what}"
    steps = {name: improvements(results, metric, mode) for name, results in sweeps.items()}
    if not any(steps.values()):
        return nothing(title, f"No trial that did not fail has reported a number as {text(metric)} yet.")
    note = f"{'higher' if mode == 'max' else 'lower'} is better; a line ends where its sweep does"
    if without := [name for name, found in steps.items() if not found]:
        note += f"; without a value yet: {text(', '.join(without), 200)}"
    made = figure(title, axis, text(metric), note)
    made.update_yaxes(**axis_of([step.value for found in steps.values() for step in found]))
    for number, (name, results) in enumerate(sweeps.items()):
        found = steps[name]
        if not found:
            continue
        wall, workers = spending(results).total
        end = {"wall": wall, "workers": workers, "trials": len(results.trials)}[of]
        x = [getattr(step, of) for step in found] + [max(end, getattr(found[-1], of))]
        dash = _DASHES[number // len(PALETTE) % len(_DASHES)]
        made.add_trace(
            go.Scatter(
                x=np.array(x) / unit,
                y=[*(step.value for step in found), found[-1].value],
                customdata=[*(step.trial for step in found), found[-1].trial],
                mode="lines+markers",
                marker={"size": 5},
                name=text(name, 40),
                line={"color": colour_of(number), "width": 2, "shape": "hv", "dash": dash},
                hovertemplate="trial %{customdata} at %{x:.4g}: %{y:.5g}<extra>" + text(name) + "</extra>",
            )
        )
    made.update_layout(showlegend=True)
    made.update_xaxes(rangemode="tozero")
    return made
