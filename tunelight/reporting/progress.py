"""Show a person how a sweep goes: one live table in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ray.tune import Callback
from rich.console import Console

from tunelight.record import SweepState
from tunelight.reporting.display import Display, Steps, guarded

_ASK_S: Final = 5.0


class ProgressCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Show a sweep's progress from Tune's callbacks, without a thread of its own.

    In a terminal or a notebook one table is redrawn, at most four times a second and for at most a hundredth of the
    time; where standard output is neither (a file, a pipe, a dumb terminal), each trial's end is one line, and so is
    each minute without one. Warnings of the training code and the errors of failed trials are said once each, in both.
    Nothing here can end the sweep.

    Args:
        state: the sweep's live view. The callback that keeps it (``RecordCallback``) must come before this
            one in Tune's list.
        total: how many trials the sweep will have, if that is known.
        progress: False shows nothing at all; a list names the table's columns.
        console: where to write; None is standard output.
        steps: what was shown until now; the first thing that is shown here ends its step.
        waits: returns what the first trial waits for, in words, or "". It is asked every five seconds until a trial
            starts, and shown once.
        clock: seconds since the epoch.

    Runs on: driver.
    """

    def __init__(
        self,
        state: SweepState,
        *,
        total: int | None = None,
        progress: bool | Sequence[str] = True,
        console: Console | None = None,
        steps: Steps | None = None,
        waits: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state, self._steps, self._waits = state, steps, waits
        self._clock, self._asked = clock, clock()
        columns = None if isinstance(progress, bool) else progress
        self._display = Display(lambda: state, total=total, columns=columns, console=console, clock=clock)
        self._shows = self._display.open = bool(progress)

    @guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Redraw if it is time. Called by Tune in each step of its loop, ten times a second or more."""
        if not self._display.open:
            return
        if self._waits is not None and self._clock() - self._asked >= _ASK_S:
            self._asked = self._clock()
            if text := self._waits():
                self._waits = None
                self.say(text)
        if self._steps is not None and self._display.view.animated and self._state.trials:
            self._begin()  # in its place the table
        if self._steps is None or not self._display.view.animated:
            self._display.tick()

    @guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that there is something to draw."""
        self._waits = None
        self._display.trial_goes_on(trial.trial_id)

    @guarded
    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any = None, **info: Any) -> None:
        """Note that there is something to draw; say new warnings at once, as that a failed trial is started again."""
        self.show_notes()

    on_trial_recover = on_trial_result

    @guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a trial has ended, or has failed where Tune saw it."""
        self._begin()
        self._display.trial_ended(trial.trial_id)

    on_trial_error = on_trial_complete

    @guarded
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Draw the table a last time, and say how the sweep went."""
        self.close()

    @guarded
    def close(self) -> None:
        """Give the terminal back and say how the sweep went. Callable more than once, and without Tune."""
        self._begin()
        self._display.close()

    def say(self, text: str) -> None:
        """Show a line at once, above the table where there is one."""
        self._begin()
        if self._shows:
            self._display.say(text)

    def _begin(self) -> None:
        """End the step that was shown until now."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.end()

    def show_notes(self) -> None:
        """Show what is new."""
        self._begin()
        self._display.touch()
        self._display.say_notes()

    def expect(self, total: int) -> None:
        """Take another number of trials."""
        self._display.total = total
