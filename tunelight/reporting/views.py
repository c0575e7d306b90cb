"""Where progress is shown: a terminal, a notebook's output cell, or a stream that takes lines only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from tunelight.machine.notebook import in_notebook, is_terminal

MAX_ROWS: Final = 20
_FRAME_LINES: Final = 8
"""What a screen takes beside the table's rows: title, head, rules, and a caption of up to three lines."""
_NOTEBOOK_ROOM: Final = 24

MakeScreen = Callable[[int], RenderableType]
"""Make what is to be drawn, where a table of so many rows fits."""


class View(Protocol):
    """One place to show progress in."""

    animated: bool
    """Whether ``draw`` shows a table; without one, the ends of trials are worth a line each."""

    def draw(self, make: MakeScreen) -> None:
        """Show the table, in place of the last one."""

    def say(self, text: str, style: str = "") -> None:
        """Write a line that stays."""

    def close(self) -> None:
        """Leave the last table as it is, and give back what was taken. Callable more than once."""


class TerminalView:
    """A table that is redrawn at the bottom of a terminal; what is said or printed goes above it."""

    animated = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def draw(self, make: MakeScreen) -> None:
        """Redraw the table, at once and from the caller's thread."""
        screen = make(max(1, self._console.height - _FRAME_LINES))
        if self._live is None:
            self._live = Live(screen, console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._live.update(screen, refresh=True)

    def say(self, text: str, style: str = "") -> None:
        """Write a line above the table."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def close(self) -> None:
        """Show the cursor again, and take hands off standard output."""
        if self._live is not None:
            self._live.stop()


class NotebookView:
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

    def close(self) -> None:
        """Leave the table in its cell."""


class LinesView:
    """Lines only: a file, a pipe, a log of a CI job."""

    animated = False

    def __init__(self, console: Console) -> None:
        self._console = console

    def draw(self, make: MakeScreen) -> None:
        """Draw nothing, and so make nothing."""

    def say(self, text: str, style: str = "") -> None:
        """Write a line."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def close(self) -> None:
        """Leave the stream open: it is not ours."""


def choose_view(console: Console | None = None) -> View:
    """Return the view that fits where the program runs; ``console`` None is standard output."""
    if console is None and in_notebook():
        return NotebookView()
    console = console or Console()
    # rich also calls a pipe a terminal where FORCE_COLOR is set, as CI services do: no live table there.
    live = console.is_terminal and not console.is_dumb_terminal and is_terminal(console.file)
    return TerminalView(console) if live else LinesView(console)
