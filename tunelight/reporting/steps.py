"""What a program is doing that has nothing to show yet."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tunelight.machine.processes import in_notebook, is_terminal
from tunelight.reporting.guard import guarded

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
            live = console.is_terminal and not console.is_dumb_terminal and is_terminal(console.file)
            if not live or in_notebook():
                console.print(f"{text} ...", highlight=False, markup=False, soft_wrap=True)
                return
            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task(text, total=None)
            self._bar.start()
