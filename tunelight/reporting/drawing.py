"""A line over time as SVG, without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunelight.reporting.markup import safe
from tunelight.reporting.words import compact

_WIDTH, _HEIGHT, _EDGE = 600, 150, 6


def drawing(
    points: Sequence[tuple[float, float | None]],
    said: str,
    span: tuple[float, float],
    *,
    mark: tuple[float, float] | None = None,
    log: bool = False,
) -> str:
    """Return a line as SVG with a caption, and gaps where a value is None.

    Args:
        points: where each value is across, and the value; at least one.
        said: the caption.
        span: the values at the lower and the upper edge.
        mark: a point to be marked.
        log: whether the scale is logarithmic, for positive values.
    """
    low, high = span
    first, last = points[0][0], points[-1][0]

    def at(place: float, value: float) -> str:
        scale = math.log10 if log else float
        across = (place - first) / ((last - first) or 1)
        up = (scale(value) - scale(low)) / ((scale(high) - scale(low)) or 1.0)
        return f"{_EDGE + across * (_WIDTH - 2 * _EDGE):.0f},{_HEIGHT - _EDGE - up * (_HEIGHT - 2 * _EDGE):.1f}"

    line, pen = [], "M"
    for place, value in points:
        if value is None:
            pen = "M"
            continue
        line.append(f"{pen}{at(place, value)}")
        pen = "L"
    dot = "" if mark is None else f'<path class="dot" d="M{at(*mark)}h0"/>'
    return (
        f'<figure class="curve"><div><span>{safe(compact(high))}</span><span>{safe(compact(low))}</span></div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"><title>{safe(said)}</title>'
        f'<path class="line" d="{"".join(line)}"/>{dot}</svg>'
        f"<figcaption>{safe(said)}</figcaption></figure>"
    )
