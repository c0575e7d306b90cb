"""Display: shows a sweep's state as it changes, in its own driver or in another process."""

from __future__ import annotations

import functools
import heapq
import importlib
import logging
import math
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.jupyter import JupyterMixin
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tunelight.machine.processes import in_notebook, is_terminal
from tunelight.record import PAUSED, PENDING, RUNNING, TERMINAL, VERBS, SweepState, TrialState, view, winner
from tunelight.record.view import curve_of, epochs, metric_of, rungs, sparkline
from tunelight.reporting.words import (
    STYLES,
    age,
    best_line,
    compact,
    counts,
    describe_error,
    elapsed,
    end_line,
    event_line,
    last_value,
    short_id,
    summary,
)

_SHORTEST_S: Final = 0.25
"""The shortest time between two redraws."""
_LONGEST_S: Final = 1.0
"""The time between two redraws if nothing happened."""
_SHARE: Final = 0.01
"""The share of the time that redraws may take: if they are slow (large terminal, slow machine), there are fewer."""
_QUIET_S: Final = 60.0
"""How long after the last line the next one is written if nothing happens, where there is no table."""
_EXTRA_LINES: Final = 3
"""Lines for rungs, the trials that are not shown and the best curve, beside the events."""


class Display:
    """Shows a sweep's state in a view that fits the terminal, and each warning and each failure once.

    Args:
        state: returns the live view.
        total: how many trials there will be, if that is known.
        columns: the table's columns; None chooses those for which there is room (see :func:`make_table`).
        console: where to write (None: standard output).
        clock: seconds since the epoch. timer: seconds, to measure redraws.
    """

    def __init__(
        self,
        state: Callable[[], SweepState],
        *,
        total: int | None = None,
        columns: Sequence[str] | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.total = total
        self.open = True
        self._get, self._console, self._clock, self._timer = state, console, clock, timer
        self._view: LinesView | None = None
        self._dirty = True
        self._drawn = -math.inf
        self._pause = _SHORTEST_S
        self._said_at = clock()
        self._columns = columns
        self._ended: set[str] = set()
        self._noted = len(state().notes)
        self._said: set[str] = set()

    @property
    def view(self) -> LinesView:
        """The view, chosen at its first use."""
        if self._view is None:
            self._view = choose_view(self._console)
        return self._view

    def touch(self) -> None:
        """Note that there is something to draw."""
        self._dirty = True

    def tick(self) -> None:
        """Redraw if it is time; without a table, write a line now and then. Cheap to call often."""
        now = self._clock()
        if not self.open or abs(now - self._drawn) < (self._pause if self._dirty else max(_LONGEST_S, self._pause)):
            return
        self._dirty, self._drawn = False, now
        began = self._timer()
        self.view.draw(self._screen)
        self._pause = max(_SHORTEST_S, (self._timer() - began) / _SHARE)
        if not self.view.animated and abs(now - self._said_at) >= _QUIET_S:
            state = self._get()
            self.say("  ".join(filter(None, (title(state, now, self.total), best_line(state)))))

    def trial_ended(self, trial_id: str) -> None:
        """Show, once, that a trial has ended."""
        state = self._get()
        trial = state.trials.get(trial_id)
        if not self.open or trial is None or trial_id in self._ended:
            return
        self._dirty = True
        self._ended.add(trial_id)
        self.say_notes()
        if trial.error is not None:
            self.say(describe_error(trial), STYLES.get(trial.state, "red"))
        if not self.view.animated:
            self.say(end_line(state, trial, self.total))

    def trial_goes_on(self, trial_id: str) -> None:
        """Note that an ended trial runs again, so that its next end is shown."""
        self._ended.discard(trial_id)
        self._dirty = True

    def say_notes(self) -> None:
        """Show the warnings that were not shown yet; the same text of several trials once."""
        notes = self._get().notes
        while self.open and self._noted < len(notes):
            trial_id, text = notes[self._noted]
            self._noted += 1
            if text not in self._said:
                self._said.add(text)
                self.say(f"trial {short_id(trial_id)}: {text}" if trial_id else text, "yellow")

    def close(self, last: str | None = None) -> None:
        """Draw a last time, restore the terminal, and write a summary (or ``last``). May be called more than once."""
        if not self.open:
            return
        state, view = self._get(), self.view
        try:
            self.say_notes()
            view.draw(self._screen)
        finally:
            self.open = False
            view.close()
        view.say(last or summary(state, self._clock()), "")

    def say(self, text: str, style: str = "") -> None:
        """Show a line at once, above the table if there is one."""
        self._said_at = self._clock()
        self.view.say(text, style)

    def _screen(self, room: int) -> SweepView:
        """Return the view for ``room`` rows: the table, and the last events if they fit."""
        state = self._get()
        events = max(0, min(MOST_EVENTS, room - MAX_ROWS // 2 - _EXTRA_LINES))
        rows = max(1, min(MAX_ROWS, room - events - (_EXTRA_LINES if events else 0)))
        return SweepView(state, rows_of(state, rows), self._clock(), self.total, events=events, columns=self._columns)


# --- The table of trials in the live view: which trials, and the columns for which there is room ---


MOST_ENDED: Final = 10
"""How many ended trials the table has at most: the best ones."""
_SAMPLE: Final = 200
"""How many of the latest trials are looked at to see which hyperparameters vary."""
_EDGE: Final = 3
"""What a column takes beside its text."""
_BEST: Final = " *"


@dataclass(frozen=True)
class Column:
    """A column: its heading, and a trial's text in it."""

    name: str
    text: Callable[[TrialState], str]
    right: bool = True

    def width(self, shown: Iterable[TrialState]) -> int:
        """Return how many characters of a line it takes."""
        return max([len(self.name), *(len(self.text(trial)) for trial in shown)]) + _EDGE


def rows_of(state: SweepState, rows: int) -> list[TrialState]:
    """Return the trials to show in ``rows`` rows: running ones, then paused ones, then the best that have ended.

    Where not all can be shown, running trials have at least half of the rows.
    """
    live = sorted(state.live.values(), key=lambda trial: trial.state == PAUSED)
    known = (trial for trial in list(state.trials.values()) if trial.id not in state.live)
    over = [trial for trial in known if trial.folded or trial.moves]
    best = min(MOST_ENDED, len(over), max(rows - len(live), rows // 2))
    return [*live[: rows - best], *heapq.nsmallest(best, over, key=lambda trial: _rank(state, trial))]


def _rank(state: SweepState, trial: TrialState) -> tuple[bool, bool, float, int]:
    """Return by what trials are sorted, the best first; failed ones, and those without a value, come last."""
    value = trial.value or 0.0
    return trial.failed, trial.value is None, -value if state.mode == "max" else value, trial.index


def make_table(
    state: SweepState, shown: Sequence[TrialState], now: float, width: int = 100, columns: Sequence[str] | None = None
) -> Table:
    """Return a table of trials, with as many columns as fit into ``width`` characters.

    ``columns`` names those that follow the trial and its state: ``workers``, ``epoch`` or ``report``, ``best``,
    ``time``, ``GPU`` (how busy its GPUs are), metrics and hyperparameters. Otherwise they are chosen: the
    hyperparameters that vary most come first.
    """
    table = Table()
    best = found.trial if (found := winner(state)) else None
    chosen = _chosen(state, shown, now, width, columns)
    for column in chosen:
        table.add_column(Text(column.name), justify="right" if column.right else "left", no_wrap=True)
    for trial in shown:
        cells = [Text(column.text(trial)) for column in chosen]
        cells[1].stylize(STYLES.get(view.state_of(trial), ""))
        table.add_row(*cells, style="bold" if trial.id == best else "")
    return table


def _chosen(
    state: SweepState, shown: Sequence[TrialState], now: float, width: int, wanted: Sequence[str] | None
) -> list[Column]:
    """Return the columns for which there is room, in the order in which they are shown."""
    best = found.trial if (found := winner(state)) else None
    rows = {trial.id: view.row(state, trial, now) for trial in shown}
    seen = view.ColumnStats([*list(state.trials.values())[-_SAMPLE:], *shown])
    metric, count = view.metric_of(state), view.unit(shown)

    def column(name: str, *path: str, show: Callable[[Any], str] = compact) -> Column:
        found = view.Column(name, path)
        return Column(name, lambda trial: show(found.of(rows[trial.id])))

    trial = Column("trial", lambda trial: short_id(trial.id) + (_BEST if trial.id == best else ""), right=False)
    known = {
        "state": Column("state", view.state_of, right=False),
        "workers": column("workers", "workers"),
        count: column(count, "at"),
        metric: column(metric, "last"),
        **{name: _metric(name) for name in state.further},
        "best": column("best", "value"),
        "time": column("time", "seconds", show=elapsed),
    }
    last = Counter(key.rpartition(".")[2] for key in seen.by_variety)
    short = {key: name if last[name := key.rpartition(".")[2]] == 1 else key for key in seen.by_variety}
    params = {key: column(name, "config", key) for key, name in short.items()}
    if wanted is not None:
        named = {param.name: param for param in params.values()} | params
        order = [known.get(name) or named.get(name) or _metric(name) for name in wanted]
        return _fitting([trial, known["state"], *order], [], shown, width)
    sizes = {trial.workers for trial in shown if trial.workers is not None}
    first, rest = list(params.values())[:2], list(params.values())[2:]
    workers, further = known.pop("workers"), [known[name] for name in state.further]
    optional = [known["best"], *first, *further, *([workers] if len(sizes) > 1 else []), *rest, workers]
    essential = [trial, *(known[name] for name in ("state", count, metric, "time"))]
    fitting = _fitting(essential, optional, shown, width)
    order = [trial, known.pop("state"), workers, *known.values(), *params.values()]
    return [column for column in order if column in fitting]


def _fitting(
    essential: Sequence[Column], optional: Iterable[Column], shown: Sequence[TrialState], width: int
) -> list[Column]:
    """Return the columns that fit beside each other, the important ones first; at least trial and state."""
    left = width - 1
    found = []
    for number, column in enumerate([*essential, *optional]):
        left -= column.width(shown)
        if left < 0 and number >= 2:
            left += column.width(shown)
            continue
        found.append(column)
    return found


def _metric(name: str) -> Column:
    return Column(name, lambda trial: compact(last_value(trial, name)))


# --- Where progress is shown: a terminal, a notebook's output cell, or a stream that takes lines only ---

MAX_ROWS: Final = 20
_FRAME_LINES: Final = 8
"""What a screen takes beside the table's rows: title, head, rules, and a caption of up to three lines."""
_NOTEBOOK_ROOM: Final = 24

MakeScreen = Callable[[int], RenderableType]
"""Make what is to be drawn, where a table of so many rows fits."""


class LinesView:
    """One place to show progress in, which takes lines only: a file, a pipe, a log of a CI job; the base of others."""

    animated = False
    """Whether ``draw`` shows a table; without one, the ends of trials are worth a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def draw(self, make: MakeScreen) -> None:
        """Show the table, in place of the last one; here nothing is drawn, and so nothing made."""

    def say(self, text: str, style: str = "") -> None:
        """Write a line that stays, above a table that there may be."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def close(self) -> None:
        """Leave the last table as it is, and give back what was taken: here nothing. Callable more than once."""


class TerminalView(LinesView):
    """A table that is redrawn at the bottom of a terminal; what is said or printed goes above it."""

    animated = True
    _live: Live | None = None

    def draw(self, make: MakeScreen) -> None:
        """Redraw the table, at once and from the caller's thread."""
        screen = make(max(1, self._console.height - _FRAME_LINES))
        if self._live is None:
            self._live = Live(screen, console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._live.update(screen, refresh=True)

    def close(self) -> None:
        """Show the cursor again, and take hands off standard output."""
        if self._live is not None:
            self._live.stop()


class NotebookView(LinesView):
    """A table in a notebook's output cell, updated in place."""

    animated = True

    def __init__(self) -> None:
        self._display = importlib.import_module("IPython.display").display
        self._handle: Any = None

    def draw(self, make: MakeScreen) -> None:
        """Replace the table."""
        if self._handle is None:
            self._handle = self._display(make(_NOTEBOOK_ROOM), display_id=True)
        else:
            self._handle.update(make(_NOTEBOOK_ROOM))

    def say(self, text: str, style: str = "") -> None:
        """Write a line below the table."""
        sys.stdout.write(f"{text}\n")


def choose_view(console: Console | None = None) -> LinesView:
    """Return the view that fits where the program runs; ``console`` None is standard output."""
    if console is None and in_notebook():
        return NotebookView()
    console = console or Console()
    # rich also calls a pipe a terminal where FORCE_COLOR is set, as CI services do: no live table there.
    live = console.is_terminal and not console.is_dumb_terminal and is_terminal(console.file)
    return TerminalView(console) if live else LinesView(console)


# --- The live view of a sweep: a rich renderable of its state, for any width ----------------------

_ASCII_SPARKS: Final = "_.-~=+*#"
_CURVE: Final = 40
MOST_EVENTS: Final = 4


@dataclass(frozen=True)
class SweepView(JupyterMixin):
    """A sweep at one moment: a line on all trials, rungs, the table of trials, the best trial's curve, the last events.

    Args:
        state: the sweep. shown: the table's rows. now: seconds since the epoch. total: trials there will be.
        events: how many of the last events to show. columns: the table's columns; None chooses them.
    """

    state: SweepState
    shown: Sequence[TrialState]
    now: float
    total: int | None
    events: int = 0
    columns: Sequence[str] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self.state, options.max_width
        yield Text(title(state, self.now, self.total), style="italic")
        past = [f"{row['at']:g}: {row['passed']} of {row['reached']} passed" for row in rungs(state) if row["reached"]]
        if past:
            yield Text(_cut(f"rungs  {'   '.join(past)}", width), style="cyan")
        yield make_table(state, self.shown, self.now, width, self.columns)
        if line := others(state, self.shown):
            yield Text(_cut(line, width), style="dim")
        yield Text(_cut(best_line(state) or f"no trial has reported the metric {metric_of(state)!r} yet", 3 * width))
        if curve := best_curve(state, min(_CURVE, width - 8), ascii_only=options.ascii_only):
            yield Text(f"  {curve}", style="cyan")
        for line in last_events(state, self.events):
            yield Text(_cut(line, width), style="dim")


def title(state: SweepState, now: float, total: int | None) -> str:
    """Return the line on all trials: their number, the workers in use, the time taken and left."""
    parts = [f"{state.sweep.get('name') or 'sweep'}  {counts(state, total)}"]
    usual = state.sweep.get("workers") or 1
    if workers := sum(trial.workers or usual for trial in list(state.live.values()) if trial.state == RUNNING):
        parts.append(f"{workers} worker{'s' if workers > 1 else ''} in use")
    parts.append(elapsed(age(state, now)))
    left = seconds_left(state, now, total)
    if left is not None:
        parts.append(f"about {elapsed(left)} left")
    return "  ".join(parts)


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


# --- Estimate the time until a sweep is over, by the trials that have ended -----------------------

_LEAST: Final = 3
"""How many trials must have ended."""


def seconds_left(state: SweepState, now: float, total: int | None) -> float | None:
    """Return an estimate of the seconds until a sweep is over; None where that is unknown.

    A trial that has not begun is expected to take the mean time of ended ones. One that runs is expected to take the
    mean residual life of those that ran longer than it; if none did, the time to ``max_epochs`` at its own pace. The
    sum is divided by the number of running trials, and is at least the longest of them. A time budget limits it.

    It is unknown if the number of trials is, if fewer than three have ended, if none runs, and if a trial has run
    longer than all ended ones and ``max_epochs`` is not known. Under schedulers that stop trials early, the first
    estimates are too low, since the first trials to end are the short ones.
    """
    ends = state.sweep.get("ends")
    budget = max(0.0, ends - now) if isinstance(ends, int | float) else None
    found = _by_trials(state, now, total)
    if found is None or budget is None:
        return found
    return min(found, budget)


def _by_trials(state: SweepState, now: float, total: int | None) -> float | None:
    trials = list(state.trials.values())
    took = sorted(trial.seconds for trial in trials if trial.state in TERMINAL and trial.seconds > 0)
    running = state.counts[RUNNING]
    if not total or len(took) < _LEAST or not running:
        return None
    sums = [0.0, *accumulate(took)]
    mean = sums[-1] / len(took)
    waiting = max(0, total - len(trials) + len(state.repetitions)) + state.counts[PENDING]
    left, longest = mean * waiting, 0.0
    for trial in list(state.live.values()):
        more = _residual(took, sums, trial.elapsed(now))
        if more is None:
            more = _by_pace(state, trial, now)
        if more is None:
            return None
        left += more
        longest = max(longest, more)
    return max(left / running, longest)


def _residual(took: list[float], sums: list[float], so_far: float) -> float | None:
    """Return the mean residual life after ``so_far`` seconds; None if no trial took longer."""
    first = bisect_right(took, so_far)
    longer = len(took) - first
    return (sums[-1] - sums[first]) / longer - so_far if longer else None


def _by_pace(state: SweepState, trial: TrialState, now: float) -> float | None:
    max_epochs, done = state.sweep.get("max_epochs"), epochs(trial.history[-1]) if trial.history else None
    if not isinstance(max_epochs, int) or not done:
        return None
    return max(0.0, trial.elapsed(now) / done * (max_epochs - done))


# --- Errors of displays must not end a sweep --------------------------------------------------------------

_log = logging.getLogger("tunelight")
_Method = TypeVar("_Method", bound=Callable[..., None])


def guarded(method: _Method) -> _Method:
    """Catch the errors of a method that shows something, which would end the sweep.

    The first one of an object is logged as a warning with its traceback, later ones are not. A closed standard output
    counts as an error: rich raises SystemExit then.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of a display must not end the sweep
            if not getattr(self, "_complained", False):
                self._complained = True
                closed = isinstance(error, SystemExit | BrokenPipeError)
                _log.warning(
                    "%s; the sweep goes on without what it would have shown (said once).",
                    "Standard output is closed" if closed else f"{type(self).__name__} failed",
                    exc_info=not closed,
                )

    return cast("_Method", call)


# --- What a program is doing that has nothing to show yet -------------------------------------------------

AFTER_S: Final = 0.5
"""How long a step takes before it is shown: a short one need not be known."""


class Steps:
    """Shows the step that a program is at, from half a second after its beginning to its end.

    In a terminal it is a line with a spinner and the seconds, which vanishes when the step ends; elsewhere a line that
    stays. A step ends when the next one begins.

    Args:
        shown: False shows nothing.
        console: where to write; None is standard output.
        after_s: seconds before a step is shown.

    Runs on: driver.
    """

    def __init__(self, *, shown: bool = True, console: Console | None = None, after_s: float = AFTER_S) -> None:
        self._shown, self._console, self._after_s = shown, console, after_s
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: Progress | None = None

    @guarded
    def __call__(self, text: str) -> None:
        """Begin a step, in a few words: "Starting Ray"."""
        self.end()
        if self._shown:
            self._timer = threading.Timer(self._after_s, self._show, (text,))
            self._timer.daemon = True
            self._timer.start()

    @guarded
    def end(self) -> None:
        """End the step. May be called without one."""
        with self._lock:
            timer, bar = self._timer, self._bar
            self._timer = self._bar = None
        if timer is not None:
            timer.cancel()
        if bar is not None:
            bar.stop()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    @guarded
    def _show(self, text: str) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():
                return  # it has ended meanwhile
            console = self._console or Console()
            if in_notebook() or not choose_view(console).animated:
                console.print(f"{text} ...", highlight=False, markup=False, soft_wrap=True)
                return
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task(text, total=None)
            self._bar.start()
