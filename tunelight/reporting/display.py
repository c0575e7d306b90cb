"""Display: shows a sweep's state as it changes, in its own driver or in another process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console

from tunelight.record import SweepState
from tunelight.reporting.screen import MOST_EVENTS, SweepView, title
from tunelight.reporting.table import rows_of
from tunelight.reporting.views import MAX_ROWS, View, choose_view
from tunelight.reporting.words import (
    STYLES,
    best_line,
    describe_error,
    end_line,
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
        self._view: View | None = None
        self._dirty = True
        self._drawn = -math.inf
        self._pause = _SHORTEST_S
        self._said_at = clock()
        self._columns = columns
        self._ended: set[str] = set()
        self._noted = len(state().notes)
        self._said: set[str] = set()

    @property
    def view(self) -> View:
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
