"""The live view of a sweep: a rich renderable of its state, for any width."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.jupyter import JupyterMixin
from rich.text import Text

from tunelight.record import RUNNING, VERBS, SweepState, TrialState, winner
from tunelight.record.view import curve_of, metric_of, rungs, sparkline
from tunelight.reporting.estimate import seconds_left
from tunelight.reporting.table import make_table
from tunelight.reporting.words import age, best_line, compact, counts, elapsed, event_line

_ASCII_SPARKS: Final = "_.-~=+*#"
_CURVE: Final = 40
MOST_EVENTS: Final = 4


class SweepView(JupyterMixin):
    """A sweep at one moment: a line on all trials, rungs, the table of trials, the best trial's curve, the last events.

    Args:
        state: the sweep. shown: the table's rows. now: seconds since the epoch. total: trials there will be.
        events: how many of the last events to show. columns: the table's columns; None chooses them.
    """

    def __init__(
        self,
        state: SweepState,
        shown: Iterable[TrialState],
        now: float,
        total: int | None,
        *,
        events: int = 0,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._state, self._shown, self._now, self._total = state, list(shown), now, total
        self._events, self._columns = events, columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self._state, options.max_width
        yield Text(title(state, self._now, self._total), style="italic")
        if line := rungs_line(state):
            yield Text(_cut(line, width), style="cyan")
        yield make_table(state, self._shown, self._now, width, self._columns)
        if line := others(state, self._shown):
            yield Text(_cut(line, width), style="dim")
        yield Text(_cut(best_line(state) or f"no trial has reported the metric {metric_of(state)!r} yet", 3 * width))
        if curve := best_curve(state, min(_CURVE, width - 8), ascii_only=options.ascii_only):
            yield Text(f"  {curve}", style="cyan")
        for line in last_events(state, self._events):
            yield Text(_cut(line, width), style="dim")


def title(state: SweepState, now: float, total: int | None) -> str:
    """Return the line on all trials: their number, the workers in use, the time taken and left."""
    parts = [f"{state.sweep.get('name') or 'sweep'}  {counts(state, total)}"]
    if state.paused:
        parts.append("paused")
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
    parts = [f"{one['at']:g}: {one['passed']} of {one['reached']} passed" for one in rungs(state) if one["reached"]]
    return f"rungs  {'   '.join(parts)}" if parts else ""


def best_curve(state: SweepState, width: int, *, ascii_only: bool = False) -> str:
    """Return the curve of the best trial in ``width`` characters, with its first and last value; empty without one."""
    best = winner(state)
    if best is None:
        return ""
    _, values = curve_of(state.trials[best.trial].history, metric_of(state)).points()
    if len(values) < 2:
        return ""
    ends = f"{compact(values[0])} ", f" {compact(values[-1])}"
    room = max(4, width - sum(map(len, ends)))
    line = sparkline(values, room, _ASCII_SPARKS) if ascii_only else sparkline(values, room)
    return line.join(ends)


def last_events(state: SweepState, most: int) -> list[str]:
    """Return the last events as lines with the time of day, the oldest first."""
    lines: list[str] = []
    for event in reversed(list(state.events)):
        if len(lines) >= most:
            break
        if line := event_line(state, event):
            lines.append(f"{time.strftime('%H:%M:%S', time.localtime(event[0]))} {' '.join(line.split())}")
    return lines[::-1]


def others(state: SweepState, shown: Iterable[TrialState]) -> str:
    """Return how many trials are not shown, by their states; empty if all are."""
    seen = {trial.id for trial in shown}
    hidden = [trial for key, trial in list(state.trials.items()) if key not in seen]
    words = Counter(VERBS.get(trial.state, trial.state.lower()) for trial in hidden)
    return f"and {len(hidden)} more: {', '.join(f'{count} {word}' for word, count in words.items())}" if hidden else ""


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: max(0, most - 3)]}..."
