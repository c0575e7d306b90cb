"""The live view of a sweep: a rich renderable of its state, for any width."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from tunelight.record import PAUSED, RUNNING, SweepState, TrialState, metric_value
from tunelight.reporting.estimate import seconds_left
from tunelight.reporting.words import (
    STYLES,
    age,
    best_line,
    compact,
    counts,
    elapsed,
    epochs,
    event_line,
    last_value,
    metric_of,
    short_id,
)

_NARROW: Final = 76
"""Columns below which the table leaves out what stands in other lines, too."""
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS: Final = "_.-~=+*#"
_CURVE: Final = 40
MOST_EVENTS: Final = 4


class SweepView(JupyterMixin):
    """A sweep at one moment: a line on all trials, rungs, the table of trials, the best trial's curve, the last events.

    Args:
        state: the sweep. shown: the table's rows. now: seconds since the epoch. total: trials there will be.
        events: how many of the last events to show.
    """

    def __init__(
        self, state: SweepState, shown: Iterable[TrialState], now: float, total: int | None, events: int = 0
    ) -> None:
        self._state, self._shown, self._now, self._total = state, list(shown), now, total
        self._events = events

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self._state, options.max_width
        yield Text(title(state, self._now, self._total), style="italic")
        if line := rungs_line(state):
            yield Text(_cut(line, width), style="cyan")
        yield make_table(state, self._shown, self._now, width)
        yield Text(_cut(best_line(state) or f"no {metric_of(state)} reported yet", 3 * width))
        if curve := best_curve(state, min(_CURVE, width - 8), ascii_only=options.ascii_only):
            yield Text(f"  {curve}", style="cyan")
        for line in last_events(state, self._events):
            yield Text(_cut(line, width), style="dim")


def title(state: SweepState, now: float, total: int | None) -> str:
    """Return the line on all trials: their number, the workers in use, the time taken and left."""
    parts = [f"{state.sweep.get('name') or 'sweep'}  {counts(state, total)}"]
    if workers := workers_in_use(state):
        parts.append(f"{workers} worker{'s' if workers > 1 else ''} in use")
    parts.append(elapsed(age(state, now)))
    left = seconds_left(state, now, total)
    if left is not None:
        parts.append(f"about {elapsed(left)} left")
    return "  ".join(parts)


def workers_in_use(state: SweepState) -> int:
    """Return how many workers the running trials hold."""
    usual = state.sweep.get("workers") or 1
    return sum(trial.workers or usual for trial in list(state.live.values()) if trial.state == RUNNING)


def rungs_line(state: SweepState) -> str:
    """Return how many trials reached each rung and went past it; empty if no rungs are known."""
    rungs = state.sweep.get("rungs") or {}
    by, places = str(rungs.get("by")), rungs.get("at") or []
    done = [trial.history[-1].get(by) for trial in list(state.trials.values()) if trial.history] if places else []
    reached = [one for one in done if isinstance(one, int | float)]
    parts = [
        f"{place:g}: {beyond} of {came} passed"
        for place in places
        if (came := sum(one >= place for one in reached))
        for beyond in [sum(one > place for one in reached)]
    ]
    return f"rungs  {'   '.join(parts)}" if parts else ""


def best_curve(state: SweepState, width: int, *, ascii_only: bool = False) -> str:
    """Return the curve of the best trial in ``width`` characters, with its first and last value; empty without one."""
    if state.best is None:
        return ""
    metric = metric_of(state)
    found = (metric_value(report, metric) for report in state.trials[state.best.trial].history)
    values = [value for value in found if value is not None and math.isfinite(value)]
    if len(values) < 2:
        return ""
    ends = f"{compact(values[0])} ", f" {compact(values[-1])}"
    room = max(4, width - sum(map(len, ends)))
    return sparkline(values, room, _ASCII_SPARKS if ascii_only else _SPARKS).join(ends)


def sparkline(values: Sequence[float], width: int, levels: str = _SPARKS) -> str:
    """Return numbers as at most ``width`` characters of different heights, each for the mean of equally many."""
    size = max(1, math.ceil(len(values) / width))
    means = [sum(part) / len(part) for at in range(0, len(values), size) if (part := values[at : at + size])]
    low, high = min(means), max(means)
    span = high - low
    if not span or not math.isfinite(span):
        return levels[0] * len(means)
    return "".join(levels[min(int((mean - low) / span * len(levels)), len(levels) - 1)] for mean in means)


def last_events(state: SweepState, most: int) -> list[str]:
    """Return the last events as lines with the time of day, the oldest first."""
    lines: list[str] = []
    for event in reversed(list(state.events)):
        if len(lines) >= most:
            break
        if line := event_line(state, event):
            lines.append(f"{time.strftime('%H:%M:%S', time.localtime(event[0]))} {' '.join(line.split())}")
    return lines[::-1]


def make_table(state: SweepState, shown: Iterable[TrialState], now: float, width: int = 100) -> Table:
    """Return a table with a row for each of ``shown``, and the number of further live trials."""
    metric, table, narrow = metric_of(state), Table(), width < _NARROW
    table.add_column("trial", no_wrap=True)
    table.add_column("state", no_wrap=True)
    further = [] if narrow else state.further
    for name in ("epoch", metric, "time") if narrow else ("workers", "epoch", metric, *further, "best", "time"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    count = 0
    for trial in shown:
        count += trial.id in state.live
        best = Text(compact(trial.value), style="bold" if state.best and state.best.trial == trial.id else "")
        said = [compact(epochs(trial.history[-1]) if trial.history else None)]
        said += [compact(last_value(trial, name)) for name in (metric, *further)]
        took = elapsed(trial.elapsed(now))
        cells = [*said, took] if narrow else [compact(trial.workers), *said, best, took]
        table.add_row(short_id(trial.id), Text(trial.state, style=STYLES.get(trial.state, "")), *cells)
    if len(state.live) > count:
        table.add_row(f"+ {len(state.live) - count}", Text("more", style="dim"))
    return table


def rows_of(state: SweepState, recent: Iterable[str], rows: int) -> list[TrialState]:
    """Return the trials to show: running ones, then paused ones, then those that ended last."""
    live = sorted(state.live.values(), key=lambda trial: trial.state == PAUSED)
    shown = live[:rows]
    over = (state.trials[key] for key in recent if key not in state.live)
    return [*shown, *islice(over, rows - len(shown))]


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: max(0, most - 3)]}..."
