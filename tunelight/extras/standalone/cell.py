"""How a notebook's cell shows what ranks draw.

Front ends of notebooks know no cursor that moves up: bars of several lines would be drawn one below the other. So the
cursor moves on a screen that is kept here, and the cell shows that screen, in place.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from tunelight.machine.processes import in_notebook, write
from tunelight.messages import Text

_CONTROL = re.compile(r"\x1b\[(\d*)([A-DGHJK])|\x1b\[\?25[lh]|[\r\n]")
_REDRAW_S = 0.1
_MOST_LINES = 200
"""A cell's output is sent whole each time it changes: longer ones are continued in another."""
_LIVE_LINES = 20
"""How many of the last lines may still be drawn over then."""


@contextlib.contextmanager
def shown() -> Iterator[Callable[[Text], None]]:
    """Yield a function that shows what ranks print: in a notebook's cell, or as it comes."""
    if not in_notebook():
        yield write
        return
    cell = Cell()
    try:
        yield cell.show
    finally:
        cell.draw()


class Cell:
    """An output of a notebook's cell that shows what ranks draw; lines are written below it."""

    def __init__(self, display: Callable[..., Any] | None = None) -> None:
        self._display = display or importlib.import_module("IPython.display").display
        self._terminal = NotebookTerminal()
        self._handle: Any = None
        self._drawn = 0.0

    def show(self, text: Text) -> None:
        """Show what a rank drew, at most ten times a second, or write its line."""
        if "\r" not in text.text and "\x1b" not in text.text:
            if line := text.text.lstrip("\n"):
                write(Text(line, text.error))
            return
        self._terminal.write(text.text)
        if len(self._terminal.lines) > _MOST_LINES:
            rest = self._terminal.split(_LIVE_LINES)
            self.draw()
            self._terminal, self._handle = rest, None
        if time.monotonic() - self._drawn >= _REDRAW_S:
            self.draw()

    def draw(self) -> None:
        """Update the output."""
        self._drawn = time.monotonic()
        shown = {"text/plain": str(self._terminal)}
        if self._handle is not None:
            self._handle.update(shown, raw=True)
        elif shown["text/plain"]:
            self._handle = self._display(shown, raw=True, display_id=True)


class NotebookTerminal:
    """The lines that a terminal of infinite height would show, with their colours."""

    def __init__(self, lines: list[str] | None = None, row: int = 0) -> None:
        self.lines = lines or [""]
        self._row = row
        self._returned = True  # the cursor is at the line's start: the next text replaces the line

    def write(self, text: str) -> None:
        """Process text with carriage returns, line ends, erasures, and cursor movements up and down."""
        at = 0
        for control in _CONTROL.finditer(text):
            self._put(text[at : control.start()])
            self._obey(control)
            at = control.end()
        self._put(text[at:])

    def _put(self, text: str) -> None:
        if text:
            self.lines[self._row] = text if self._returned else self.lines[self._row] + text
            self._returned = False

    def _obey(self, control: re.Match[str]) -> None:
        count, command = int(control[1] or 1), control[2]
        if control[0] == "\n" or command == "B":
            self._row += 1 if command is None else count
            self.lines += [""] * (self._row + 1 - len(self.lines))
        elif command == "A":
            self._row = max(0, self._row - count)
        elif command in ("J", "K"):
            self.lines[self._row] = ""
            if command == "J":
                del self.lines[self._row + 1 :]
        if control[0] in ("\r", "\n"):
            self._returned = True

    def split(self, last: int) -> NotebookTerminal:
        """Keep all but the last lines; return a terminal with those, and with the cursor."""
        rest = NotebookTerminal(self.lines[-last:], max(0, self._row - len(self.lines) + last))
        rest._returned = self._returned
        del self.lines[-last:]
        return rest

    def __str__(self) -> str:
        return "\n".join(self.lines).rstrip()
