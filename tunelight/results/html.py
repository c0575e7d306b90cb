"""What a notebook shows of a sweep and of a trial: HTML without scripts, with its curve as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from tunelight.settings.dotted import flatten

TOP = 10
"""How many trials a sweep's table has."""
_WIDTH, _HEIGHT, _EDGE = 480, 120, 6
_CELL = "text-align:left;padding:2px 10px 2px 0;white-space:nowrap"


class Row(NamedTuple):
    """A trial as the table of a sweep has it."""

    id: str
    state: str
    value: float | None
    config: Mapping[str, Any]


def sweep_html(
    title: str, objective: tuple[str, str] | None, values: Sequence[float | None], best: Sequence[Row]
) -> str:
    """Return a sweep as HTML: its best value so far, the best trials and the winner's configuration.

    ``objective`` is the first metric and its mode, None for a sweep without one; ``values`` has each trial's best
    value, in order of creation.
    """
    parts = [f"<b>{escape(title)}</b>"]
    metric, mode = objective or ("value", "min")
    if objective is not None:
        parts.append(_curve(list(_best_so_far(values, mode)), f"best {metric} so far, by trial"))
    if best:
        configs = [_flat(row.config) for row in best]
        keys = list(dict.fromkeys(key for config in configs for key in config))
        rows = [
            [row.id, row.state.lower(), row.value, *map(config.get, keys)]
            for row, config in zip(best, configs, strict=True)
        ]
        parts.append(_table(["trial", "state", f"best {metric}", *keys], rows))
        left = len(values) - len(best)
        parts.append(f"and {left} more: results.trials, results.dataframe()" if left else "")
        parts.append(f"results.best_config: <code>{escape(str(best[0].config))}</code>")
    return _page(parts)


def trial_html(
    title: str, metric: str | None, values: Sequence[float | None], config: Mapping[str, Any], error: str | None
) -> str:
    """Return a trial as HTML: the curve of ``metric``, whose ``values`` are those of its reports, and its config."""
    parts = [f"<b>{escape(title)}</b>"]
    if metric is not None:
        parts.append(_curve([math.nan if value is None else value for value in values], f"{metric}, by report"))
    parts.append(_table(["key", "value"], list(_flat(config).items())))
    if error:
        parts.append(f"<pre>{escape(error)}</pre>")
    return _page(parts)


def short(value: Any) -> str:
    """Return a value as a cell shows it."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(config).items() if value != {}}


def _best_so_far(values: Iterable[float | None], mode: str) -> Iterable[float]:
    best = math.nan
    for value in values:
        if value is not None and math.isfinite(value):
            best = value if math.isnan(best) else min(best, value) if mode == "min" else max(best, value)
        yield best


def _page(parts: Iterable[str]) -> str:
    return f"<div>{''.join(f'<div>{part}</div>' for part in parts if part)}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(tag: str, cells: Iterable[Any]) -> str:
        return "".join(["<tr>", *(f'<{tag} style="{_CELL}">{escape(short(cell))}</{tag}>' for cell in cells), "</tr>"])

    body = "".join(line("td", row) for row in rows)
    return f'<div style="overflow-x:auto"><table>{line("th", head)}{body}</table></div>'


def _curve(values: Sequence[float], label: str) -> str:
    """Return a line of values, one after another; nothing for fewer than two numbers."""
    points = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    across = (_WIDTH - 2 * _EDGE) / (points[-1][0] - points[0][0])
    up = (_HEIGHT - 2 * _EDGE) / ((high - low) or 1.0)
    line = " ".join(
        f"{_EDGE + across * (index - points[0][0]):.1f},{_HEIGHT - _EDGE - up * (value - low):.1f}"
        for index, value in points
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" style="max-width:100%" role="img">'
        f"<title>{escape(label)}</title>"
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
        f"<div><small>{escape(label)}: {short(values[-1])} (from {short(low)} to {short(high)})</small></div>"
    )
