"""What a notebook shows of a sweep and of a trial: HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tunelight.record import SweepState, TrialState, view
from tunelight.settings.dotted import flatten

TOP = 10
"""How many trials a sweep's table has."""
_WIDTH = 60
"""Characters of a curve."""
_CELL = "text-align:left;padding:2px 10px 2px 0;white-space:nowrap"


def sweep_html(title: str, state: SweepState, best: Sequence[TrialState], config: Mapping[str, Any] | None) -> str:
    """Return a sweep as HTML: its best value so far, the best trials, and ``config``, the winner's configuration."""
    parts = [f"<b>{escape(title)}</b>"]
    parts.append(_curve(view.best_so_far(state), f"best {view.metric_of(state)} so far, by trial"))
    if best:
        shown = [column for column in view.columns(state, view.Seen(best)) if column.kind or column.path == ("value",)]
        shown = [column for column in shown if column.kind not in ("time", "percent")]
        rows = [view.row(state, trial) for trial in best]
        parts.append(table([column.name for column in shown], [[column.of(row) for column in shown] for row in rows]))
        left = len(state.searched) - len(best)
        parts.append(f"and {left} more: results.trials, results.dataframe()" if left > 0 else "")
        parts.append(f"results.best_config: <code>{escape(str(config))}</code>")
    return _page(parts)


def trial_html(
    title: str, metric: str | None, history: Iterable[dict[str, Any]], config: Mapping[str, Any], error: str | None
) -> str:
    """Return a trial as HTML: the curve of ``metric`` over its reports, its configuration and its error."""
    parts = [f"<b>{escape(title)}</b>"]
    if metric is not None:
        _, values = view.curve_of(history, metric).points()
        parts.append(_curve(values, f"{metric}, by report"))
    parts.append(table(["key", "value"], list(flatten(config).items())))
    if error:
        parts.append(f"<pre>{escape(error)}</pre>")
    return _page(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML."""

    def line(tag: str, cells: Iterable[Any]) -> str:
        return "".join(["<tr>", *(f'<{tag} style="{_CELL}">{escape(short(cell))}</{tag}>' for cell in cells), "</tr>"])

    body = "".join(line("td", row) for row in rows)
    return f'<div style="overflow-x:auto"><table>{line("th", head)}{body}</table></div>'


def short(value: Any) -> str:
    """Return a value as a cell shows it."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _page(parts: Iterable[str]) -> str:
    return f"<div>{''.join(f'<div>{part}</div>' for part in parts if part)}</div>"


def _curve(values: Sequence[float], label: str) -> str:
    """Return a line of values, one after another; nothing for fewer than two."""
    if len(values) < 2:
        return ""
    said = f"{escape(label)}: {short(values[-1])} (from {short(min(values))} to {short(max(values))})"
    return f"<div><code>{view.sparkline(values, _WIDTH)}</code></div><div><small>{said}</small></div>"
