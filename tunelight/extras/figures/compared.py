"""The figure that compares sweeps: the best value so far, trial by trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import plotly.graph_objects as go

from tunelight.extras.figures.data import failed_in, judged_by, values_of
from tunelight.extras.figures.style import PALETTE, axis_of, figure, nothing, text

if TYPE_CHECKING:
    from tunelight.extras.figures.data import Sweep

_DASHES: Final = ("solid", "dash", "dot", "dashdot")


def colour_of(number: int) -> str:
    """Return the colour of a sweep by its place among the compared; from the ninth on, lines are dashed."""
    return PALETTE[number % len(PALETTE)]


def best_by_trials(sweeps: Mapping[str, Sweep]) -> go.Figure:
    """Draw each sweep's best value so far against the number of its trials; ``sweeps`` are by their names."""
    metric, mode = judged_by(next(iter(sweeps.values())))
    title = f"Best {text(metric)} so far, against trials"
    values = {name: values_of(results, metric, mode) for name, results in sweeps.items()}
    good = {name: np.isfinite(values[name]) & ~failed_in(results) for name, results in sweeps.items()}
    if not any(known.any() for known in good.values()):
        return nothing(title, f"No trial that did not fail has reported a number as {text(metric)} yet.")
    note = f"{'higher' if mode == 'max' else 'lower'} is better"
    if without := [name for name, known in good.items() if not known.any()]:
        note += f"; without a value yet: {text(', '.join(without), 200)}"
    made = figure(title, "trials, in order of creation", text(metric), note)
    made.update_yaxes(**axis_of(np.concatenate([values[name][known] for name, known in good.items()])))
    for number, (name, known) in enumerate(good.items()):
        if not known.any():
            continue
        first = int(np.argmax(known))
        best = (np.fmax if mode == "max" else np.fmin).accumulate(np.where(known, values[name], np.nan))[first:]
        made.add_trace(
            go.Scatter(
                x=np.arange(first + 1, len(known) + 1),
                y=best,
                mode="lines",
                name=text(name, 40),
                line={
                    "color": colour_of(number),
                    "width": 2,
                    "shape": "hv",
                    "dash": _DASHES[number // len(PALETTE) % len(_DASHES)],
                },
                hovertemplate="best of %{x} trials: %{y:.5g}<extra>" + text(name) + "</extra>",
            )
        )
    made.update_layout(showlegend=True)
    made.update_xaxes(rangemode="tozero")
    return made
