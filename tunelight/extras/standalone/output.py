"""What the ranks of a driver's job print, sent to the driver; each line begins with its rank."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tunelight.gang.output import RankLines, redirected
from tunelight.messages import Terminal, Text

_LOOK_S, _AT_ONCE, _LONGEST = 0.1, 1 << 20, 1 << 26
"""How often the output of child processes is looked for, how much is read in one go, and how long its file may get."""


@contextlib.contextmanager
def to_driver(rank: int, terminal: Terminal, post: Callable[[Text], None]) -> Iterator[None]:
    """Redirect what this process and its children print, by files that never keep them waiting, to a job's driver."""
    streams = [RankStream(rank, terminal, post, error=error) for error in (False, True)]
    over = threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = over.wait(_LOOK_S)
            for stream in streams:
                stream.look()

    with contextlib.ExitStack() as stack:
        for stream in streams:
            stream.file = stack.enter_context(tempfile.TemporaryFile("ab+", buffering=0))
            stack.callback(stream.finish)
        thread = threading.Thread(target=follow, name="tunelight-output", daemon=True)
        stack.callback(thread.join)
        stack.callback(over.set)
        thread.start()
        with redirected(*streams):
            yield


class RankStream(RankLines):
    """Posts what a rank prints: complete lines, and a progress bar as it is drawn.

    A progress bar is known by its carriage returns and escapes.
    """

    file: Any = None
    """What child processes print, and forks of this one (None: nobody follows them)."""

    def __init__(self, rank: int, terminal: Terminal, post: Callable[[Text], None], *, error: bool) -> None:
        self._tty, self._post, self._error, self._drawing = terminal.tty, post, error, False
        self._process, self._read = os.getpid(), 0
        super().__init__(rank)

    def isatty(self) -> bool:
        """Tell whether the driver's own stream is a terminal."""
        return self._tty

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return int(super().fileno() if self.file is None else self.file.fileno())

    def look(self) -> None:
        """Post what was written to the file."""
        while found := os.pread(self.fileno(), _AT_ONCE, self._read):
            self._read += len(found)
            self.take(found)
        if self._read > _LONGEST:
            self.file.truncate(0)
            self._read = 0

    def _take(self, data: bytes) -> None:
        if os.getpid() != self._process:
            os.write(self.fileno(), data)  # a fork: its parent posts it
        elif b"\r" in data or b"\x1b" in data or (self._drawing and not data.strip()):
            self._finish_line()
            self._drawing = not data.endswith(b"\n")
            self._put(data)
        else:
            if self._drawing and b"\n" in data:
                self._drawing = False
                self._put(b"\n")
            super()._take(data)

    def _put(self, lines: bytes) -> None:
        self._post(Text(lines.decode(errors="replace"), self._error))
