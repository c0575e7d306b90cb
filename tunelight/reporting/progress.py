"""Show a person how a sweep goes: one live table in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ray.tune import Callback
from rich.console import Console, ConsoleOptions, RenderResult
from rich.jupyter import JupyterMixin
from rich.table import Table
from rich.text import Text

from tunelight.reporting.guard import guarded
from tunelight.reporting.views import MAX_ROWS, View, choose_view
from tunelight.storage import (
    DIVERGED,
    ERROR,
    FINISHED,
    INTERRUPTED,
    OOM,
    PAUSED,
    RUNNING,
    STOPPED,
    TERMINAL,
    SweepState,
    TrialState,
    metric_value,
)

_SHORTEST_S: Final = 0.25
"""Between two redraws when something happened."""
_LONGEST_S: Final = 1.0
"""Between two redraws when only time passed."""
_MESSAGE_CHARS: Final = 300
_STYLES: Final = {
    RUNNING: "green",
    PAUSED: "yellow",
    STOPPED: "dim",
    DIVERGED: "magenta",
    OOM: "magenta",
    ERROR: "red",
    INTERRUPTED: "yellow",
}
_VERBS: Final = {
    FINISHED: "finished",
    STOPPED: "stopped",
    DIVERGED: "diverged",
    OOM: "ran out of memory",
    ERROR: "failed",
    INTERRUPTED: "was interrupted",
}
_ENDS: Final = {**_VERBS, STOPPED: "stopped early", INTERRUPTED: "interrupted"}


class ProgressCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Show a sweep's progress from Tune's callbacks, without a thread of its own.

    In a terminal or a notebook one table is redrawn, at most four times a second; where standard output is
    neither, each trial's end is one line. Warnings of the training code and the errors of failed trials are
    said once each, in both. Nothing here can end the sweep.

    Args:
        state: the sweep's live view. The callback that keeps it (``RecordCallback``) must come before this
            one in Tune's list.
        total: how many trials the sweep will have; None takes what Tune says, if it knows.
        progress: False shows nothing at all.
        console: where to write; None is standard output.
        clock: seconds since the epoch.

    Runs on: driver.
    """

    def __init__(
        self,
        state: SweepState,
        *,
        total: int | None = None,
        progress: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._total = total
        self._console = console
        self._clock = clock
        self._view: View | None = None
        self._open = progress
        self._dirty = True
        self._drawn = -math.inf
        self._recent: deque[str] = deque(maxlen=MAX_ROWS)
        self._noted = len(state.notes)
        self._said: set[str] = set()

    # -- Tune's calls

    @guarded
    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        """Take the number of trials from Tune, unless it was given."""
        if self._total is None and isinstance(total_num_samples, int) and total_num_samples > 0:
            self._total = total_num_samples

    @guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Redraw if it is time. Called by Tune in each step of its loop, ten times a second or more."""
        now = self._clock()
        if not self._open or abs(now - self._drawn) < (_SHORTEST_S if self._dirty else _LONGEST_S):
            return
        self._draw(now)

    @guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that there is something to draw."""
        self._dirty = True

    @guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
    ) -> None:
        """Note that there is something to draw; say new warnings at once."""
        self._dirty = True
        self._say_notes()

    @guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a trial has ended."""
        self._trial_ended(trial.trial_id)

    @guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a trial has failed where Tune saw it."""
        self._trial_ended(trial.trial_id)

    @guarded
    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a trial has failed and will be started again."""
        self._dirty = True
        self._say_notes()

    @guarded
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Draw the table a last time, and say how the sweep went."""
        self.close()

    @guarded
    def close(self) -> None:
        """Give the terminal back and say how the sweep went. Callable more than once, and without Tune."""
        if not self._open:
            return
        self._open = False
        view = self._ready_view()
        cut = [trial.id for trial in self._state.trials.values() if trial.state == INTERRUPTED and trial.history]
        self._recent.extend(cut)
        try:
            self._say_notes(view)
            view.draw(self._screen)
        finally:
            view.close()
        view.say(summary(self._state, self._clock()), "")

    def __getstate__(self) -> dict[str, Any]:
        """Return a silent copy: Tune pickles its callbacks, and a terminal stays where it is."""
        return {**self.__dict__, "_view": None, "_console": None, "_open": False}

    # -- what is shown

    def _ready_view(self) -> View:
        if self._view is None:
            self._view = choose_view(self._console)
        return self._view

    def _draw(self, now: float) -> None:
        self._dirty, self._drawn = False, now
        self._ready_view().draw(self._screen)

    def _screen(self, rows: int) -> Screen:
        return make_screen(self._state, self._shown(rows), self._clock(), self._total)

    def _shown(self, rows: int) -> list[TrialState]:
        """Return the running trials, then those that ended last, at most ``rows``."""
        shown = list(islice(self._state.live.values(), rows))
        recent = (self._state.trials[key] for key in reversed(self._recent) if key not in self._state.live)
        shown.extend(islice(recent, rows - len(shown)))
        return shown

    def _trial_ended(self, trial_id: str) -> None:
        trial = self._state.trials.get(trial_id)
        if not self._open or trial is None or trial_id in self._recent:
            return
        self._dirty = True
        self._recent.append(trial_id)
        view = self._ready_view()
        self._say_notes(view)
        if trial.error is not None:
            view.say(describe_error(trial), _STYLES.get(trial.state, "red"))
        if not view.animated:
            view.say(end_line(self._state, trial, self._total), "")

    def _say_notes(self, view: View | None = None) -> None:
        """Say warnings that were not said yet; the same text of several trials is said once."""
        if not self._open and view is None:
            return
        while self._noted < len(self._state.notes):
            trial_id, text = self._state.notes[self._noted]
            self._noted += 1
            if text not in self._said:
                self._said.add(text)
                (view or self._ready_view()).say(f"trial {short_id(trial_id)}: {text}" if trial_id else text, "yellow")


# What it says


class Screen(JupyterMixin):
    """The table of a sweep, with a line on all trials above it and the best one below."""

    def __init__(self, title: str, table: Table, caption: str) -> None:
        self.title, self.table, self.caption = title, table, caption

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="italic")
        yield self.table
        yield Text(self.caption)


def make_screen(state: SweepState, shown: Iterable[TrialState], now: float, total: int | None) -> Screen:
    """Return what a person sees: ``shown`` are the rows of the table, the lines are about all trials."""
    name = state.sweep.get("name") or "sweep"
    return Screen(
        f"{name}  {_counts(state, total)}  {elapsed(_age(state, now))}",
        make_table(state, shown, now),
        best_line(state) or f"no {_metric(state)} reported yet",
    )


def make_table(state: SweepState, shown: Iterable[TrialState], now: float) -> Table:
    """Return one row for each of ``shown``, and how many more are running."""
    metric, table = _metric(state), Table()
    table.add_column("trial", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("workers", "epoch", metric, "best", "time"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    count = 0
    for trial in shown:
        count += trial.id in state.live
        table.add_row(
            short_id(trial.id),
            Text(trial.state, style=_STYLES.get(trial.state, "")),
            compact(trial.workers),
            compact(_epochs(trial.history[-1]) if trial.history else None),
            compact(_last(trial, metric)),
            Text(compact(trial.value), style="bold" if state.best and state.best.trial == trial.id else ""),
            elapsed(trial.elapsed(now)),
        )
    if len(state.live) > count:
        table.add_row(f"+ {len(state.live) - count}", Text("more", style="dim"))
    return table


def end_line(state: SweepState, trial: TrialState, total: int | None) -> str:
    """Return the one line that says how a trial ended."""
    metric, best = _metric(state), state.best
    parts = [f"trial {short_id(trial.id)} {_VERBS.get(trial.state, 'ended')} {_after(trial)}"]
    if trial.value is not None:
        parts.append(f"{metric}={compact(trial.value)}")
    if best is not None:
        parts.append(f"(best {compact(best.value)} by {short_id(best.trial)})")
    parts.append(_done(state, total))
    return "  ".join(parts)


def best_line(state: SweepState) -> str:
    """Return the best report of a sweep and its configuration; empty before the first report."""
    best = state.best
    if best is None:
        return ""
    when = f"epoch {best.epoch + 1}" if best.epoch is not None else f"report {best.training_iteration}"
    leaves = _leaves(state.trials[best.trial].config_at(best.training_iteration))
    config = ", ".join(f"{key}={None if value is None else compact(value)}" for key, value in leaves)
    return f"best {_metric(state)}={compact(best.value)} by trial {short_id(best.trial)} at {when}: {config}"


def describe_error(trial: TrialState) -> str:
    """Return which rank of a trial failed and how, and where its traceback is."""
    error = trial.error or {}
    rank = error.get("rank")
    who = f"rank {rank}: " if isinstance(rank, int) and rank >= 0 else ""
    message = " ".join(str(error.get("message", "")).split())
    if len(message) > _MESSAGE_CHARS:
        message = f"{message[:_MESSAGE_CHARS]}..."
    where = f" (traceback: {trial.folder}/log.txt)" if error.get("traceback") and trial.folder else ""
    if trial.state == DIVERGED:
        return f"trial {short_id(trial.id)} diverged: {who}{message}{where}"
    how = _VERBS.get(trial.state, "failed")
    return f"trial {short_id(trial.id)} {how}: {who}{error.get('type_name', 'error')}: {message}{where}"


def summary(state: SweepState, now: float) -> str:
    """Return how a sweep went, in one paragraph."""
    counts = [f"{state.counts[key]} {word}" for key, word in _ENDS.items() if state.counts[key]]
    left = len(state.trials) - _ended(state)
    if left:
        counts.append(f"{left} not ended")
    name = f"Sweep {state.sweep['name']}" if state.sweep.get("name") else "The sweep"
    trials = "1 trial" if len(state.trials) == 1 else f"{len(state.trials)} trials"
    how = f" ({', '.join(counts)})" if counts else ""
    best = best_line(state) or f"no {_metric(state)} was reported"
    return f"{name} ended after {elapsed(_age(state, now))}: {trials}{how}. {best[0].upper()}{best[1:]}"


def short_id(trial_id: str | None) -> str:
    """Return the number that a trial's id ends with, as tunelight's and Tune's own do; else the whole id."""
    tail = (trial_id or "").rsplit("_", 1)[-1]
    return tail if tail.isdecimal() else str(trial_id)


def compact(value: Any) -> str:
    """Return a value in few characters: four digits of a number, the beginning of a long text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int) and abs(value) < 1_000_000:
        return str(value)
    if isinstance(value, int | float):
        try:
            return f"{float(value):.4g}"
        except OverflowError:
            return f"{str(value)[:20]}..."
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


def elapsed(seconds: float) -> str:
    """Return a duration as a person says it: ``8s``, ``3m 05s``, ``2h 10m``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _metric(state: SweepState) -> str:
    return state.sweep.get("metric") or "metric"


def _age(state: SweepState, now: float) -> float:
    return max(0.0, now - state.started) if state.started is not None else 0.0


def _ended(state: SweepState) -> int:
    return sum(state.counts[key] for key in TERMINAL)


def _done(state: SweepState, total: int | None) -> str:
    return f"{_ended(state)}/{total} done" if total else f"{_ended(state)} done"


def _counts(state: SweepState, total: int | None) -> str:
    words = {
        RUNNING: "running",
        PAUSED: "paused",
        **{key: _ENDS[key] for key in (STOPPED, DIVERGED, OOM, ERROR, INTERRUPTED)},
    }
    shown = [f"{state.counts[key]} {word}" for key, word in words.items() if state.counts[key]]
    return ", ".join([_done(state, total), *shown])


def _epochs(report: Mapping[str, Any]) -> int | None:
    """Return how many epochs a report has seen (Lightning counts them from 0)."""
    epoch = report.get("epoch")
    return epoch + 1 if isinstance(epoch, int) else None


def _after(trial: TrialState) -> str:
    if not trial.history:
        return "before its first report"
    epochs = _epochs(trial.history[-1])
    count, unit = (len(trial.history), "report") if epochs is None else (epochs, "epoch")
    return f"after {count} {unit}{'' if count == 1 else 's'}"


def _last(trial: TrialState, metric: str) -> Any:
    """Return the metric in a trial's last report as it was reported, NaN included; None without one."""
    report = trial.history[-1] if trial.history else {}
    return report.get(metric, metric_value(report, metric))


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
