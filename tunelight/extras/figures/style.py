"""Layout, colours, axes and escaped text, shared by all figures."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from tunelight.record import OUTCOMES

Values = npt.NDArray[Any]

COLOURS: Final = {name: outcome.colour for name, outcome in OUTCOMES.items()}
PALETTE: Final = ("#3b7dc4", "#e07b39", "#2a9d6f", "#b65fcf", "#d1495b", "#9c7a3c", "#17a2b8", "#7f7f7f")
BEST: Final = "#d1495b"
SCALE: Final = "Viridis"
GL_FROM: Final = 3000
"""Points from which on a figure is drawn by WebGL, which stays smooth; below it as SVG, which prints sharper."""
_AXIS: Final = {
    "automargin": True,
    "gridcolor": "#e3e8ee",
    "linecolor": "#e3e8ee",
    "ticks": "outside",
    "zeroline": False,
}
_TEMPLATE: Final = {
    "layout": {
        "font": {"color": "#2a3442"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
}
_TEXT: Final = 48
_MOST_TICKS: Final = 8
"""Powers of ten that are marked on an axis."""
_DECADES: Final = 100.0
"""Spread of positive values (a high quantile to a low one) from which on an axis is logarithmic. Of many numbers drawn
evenly from 0 on, it is about 50."""
_LOG_FROM: Final = 30.0
"""Spread from which on an axis may be logarithmic..."""
_LOG_BELOW: Final = 0.25
"""...if half of them lie below this part of the high one: of numbers drawn evenly, half lie below 0.5 of it."""


def text(value: Any, limit: int = _TEXT) -> str:
    """Return a value as text of at most ``limit`` characters, escaped for plotly."""
    return html.escape(clip_text(value, limit), quote=False)


def clip_text(value: Any, limit: int = _TEXT) -> str:
    """Return a value as text of at most ``limit`` characters, for parallel coordinates, which know no markup."""
    if isinstance(value, float):
        return f"{value:.4g}"
    words = " ".join(str(value).split())
    return words if len(words) <= limit else f"{words[: limit - 3]}..."


def figure(title: str, x: str = "", y: str = "", note: str = "") -> go.Figure:
    """Return an empty figure with a title, a smaller line below it, and titles of its axes."""
    return styled(go.Figure(layout={"xaxis_title_text": x, "yaxis_title_text": y}), title, note)


def styled(made: go.Figure, title: str, note: str = "") -> go.Figure:
    """Give a figure the style of all, a title and a smaller line below it; return it."""
    below = f"<br><sup>{note}</sup>" if note else ""
    return made.update_layout(
        template=_TEMPLATE,
        title={"text": f"{title}{below}", "x": 0, "xref": "paper", "y": None, "yanchor": None, "yref": None},
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"},
        margin={"l": 60, "r": 30, "t": 80, "b": 80},
        height=460,
        width=None,
        hovermode="closest",
    )


def nothing(title: str, why: str) -> go.Figure:
    """Return a figure with the reason why there is nothing to draw."""
    made = figure(title)
    made.update_layout(height=220)
    made.update_xaxes(visible=False)
    made.update_yaxes(visible=False)
    made.add_annotation(text=why, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 15})
    return made


def scatter(count: int) -> Any:
    """Return plotly's class of scatter plots for this many points."""
    return go.Scattergl if count >= GL_FROM else go.Scatter


def smooth(made: go.Figure) -> go.Figure:
    """Return a figure of scatter plots as it is, or with many points drawn by WebGL."""
    if scatter(sum(len(trace.x or ()) for trace in made.data)) is go.Scatter:
        return made
    return go.Figure([{**trace.to_plotly_json(), "type": "scattergl"} for trace in made.data], made.layout)


def is_wide(values: Values | Sequence[float]) -> bool:
    """Tell whether values are better seen on a logarithmic axis: all positive, and over two decades or so."""
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found)]
    if len(found) < 2 or found.min() <= 0:
        return False
    low, high = np.quantile(found, 0.02, method="lower"), np.quantile(found, 0.98, method="higher")
    middle = np.median(found)
    return bool(high / low >= _DECADES or (high / low >= _LOG_FROM and middle / high <= _LOG_BELOW))


def axis_of(values: Values | Sequence[float]) -> dict[str, Any]:
    """Return what an axis of plotly needs that fits the values: its type, and how a logarithmic one is marked."""
    if not is_wide(values):
        return {"type": "linear"}
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found)]
    decades = math.log10(found.max() / found.min())
    marks = {"dtick": math.ceil(decades / _MOST_TICKS)} if decades >= 2 else {}
    return {"type": "log", "exponentformat": "power", **marks}
