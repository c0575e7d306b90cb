"""What ranks print: to the trial's log, or as it happens to the driver; each line with its rank before it."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tunelight.messages import Terminal, Text

LOG = "log.txt"


class RankLog(io.TextIOBase):
    """A text stream that writes whole lines to the trial's log (and on, if asked to). Thread-safe."""

    def __init__(self, path: Path, rank: int, also: TextIO | None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._prefix = f"[{rank}] "
        self._also = also
        self._part = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Take text; lines are written when they are complete."""
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
            if lines:
                self._put("".join(f"{self._prefix}{line}\n" for line in lines))
        return len(text)

    def _put(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode(errors="replace"))
        except OSError:
            return  # a full disk must not end a trial that only wanted to print
        if self._also is not None:
            self._also.write(text)

    def flush(self) -> None:
        """Do nothing: lines are on their way already."""

    def fileno(self) -> int:
        """Return the log's descriptor, for child processes."""
        return self._fd

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the log's encoding."""
        return "utf-8"

    def finish(self) -> None:
        """Write what has no line end yet, and close the log."""
        with self._lock:
            if self._part:
                self._put(f"{self._prefix}{self._part}\n")
                self._part = ""
            os.close(self._fd)
            self._fd = os.open(os.devnull, os.O_WRONLY)  # a left-over thread may still print

    def __del__(self) -> None:
        """Give the descriptor back."""
        try:
            os.close(self._fd)
        except OSError:
            return


class TrialOutput:
    """Sends this process's standard output and error to the trial's log while a trial runs."""

    def __init__(self, trial_dir: str, rank: int, verbose: int) -> None:
        self._path = Path(trial_dir, LOG)
        self._rank = rank
        self._verbose = verbose

    def __enter__(self) -> TrialOutput:
        self._saved = (sys.stdout, sys.stderr)
        self._log = RankLog(self._path, self._rank, self._saved[0] if self._verbose else None)
        sys.stdout = sys.stderr = self._log
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._saved
        self._log.finish()


class RankStream(io.TextIOBase):
    """A text stream that posts what a rank prints: whole lines with the rank before them, a bar as it is drawn.

    A progress bar rewrites its line, which its carriage returns and escapes tell. Thread-safe.
    """

    def __init__(self, rank: int, terminal: Terminal, post: Callable[[Text], None], *, error: bool) -> None:
        self._prefix = f"[{rank}] "
        self._tty = terminal.tty
        self._post = post
        self._error = error
        self._part = ""
        self._drawing = False
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Take text."""
        with self._lock:
            if "\r" in text or "\x1b" in text or (self._drawing and not text.strip()):
                self._finish_line()
                self._drawing = not text.endswith("\n")
                self._post(Text(text, self._error))
            else:
                *lines, self._part = (self._part + text).split("\n")
                if lines:
                    start = "\n" if self._drawing else ""
                    self._drawing = False
                    self._post(Text(start + "".join(f"{self._prefix}{line}\n" for line in lines), self._error))
        return len(text)

    def _finish_line(self) -> None:
        if self._part:
            self._post(Text(f"{self._prefix}{self._part}\n", self._error))
            self._part = ""

    def flush(self) -> None:
        """Do nothing: whole lines are on their way already."""

    def isatty(self) -> bool:
        """Tell whether the driver's own stream is a terminal."""
        return self._tty

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding that text will have."""
        return "utf-8"

    def finish(self) -> None:
        """Post what has no line end yet."""
        with self._lock:
            self._finish_line()


class JobOutput:
    """Sends this process's standard output and error to the driver while a job runs."""

    def __init__(self, rank: int, terminal: Terminal, post: Callable[[Text], None]) -> None:
        self._streams = [RankStream(rank, terminal, post, error=error) for error in (False, True)]

    def __enter__(self) -> JobOutput:
        self._saved = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = self._streams
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._saved
        for stream in self._streams:
            stream.finish()
