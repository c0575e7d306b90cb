"""What ranks print, to the trial's log or to the driver; each line begins with its rank."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO
from weakref import WeakSet

from tunelight.checkpoints import files as checkpoints
from tunelight.messages import Terminal, Text
from tunelight.stores import alone, delete_local, shown, store_of

LOG = "log.txt"
_DRIVERS = ("metrics.jsonl", ".tunelight")
"""Endings of the names of files in a trial's folder that the driver writes and uploads itself."""

logger = logging.getLogger(__name__)
_streams: WeakSet[RankLines] = WeakSet()


class RankLines(io.TextIOBase):
    """A text stream that puts out complete lines, each with its rank in front. Safe for threads and in forks."""

    def __init__(self, rank: int) -> None:
        self._prefix = f"[{rank}] "
        self._begin()
        _streams.add(self)

    def _begin(self) -> None:
        """Start without a line. A fork has no thread that could finish the parent's line or release its lock."""
        self._part = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Take text; a line is put out when it is complete."""
        with self._lock:
            self._take(text)
        return len(text)

    def _take(self, text: str) -> None:
        *lines, self._part = (self._part + text).split("\n")
        if lines:
            self._put("".join(f"{self._prefix}{line}\n" for line in lines))

    def _put(self, text: str) -> None:
        """Put out complete lines."""
        raise NotImplementedError

    def _finish_line(self) -> None:
        if self._part:
            self._put(f"{self._prefix}{self._part}\n")
            self._part = ""

    def finish(self) -> None:
        """Put out the last line, which may be incomplete."""
        with self._lock:
            self._finish_line()

    def flush(self) -> None:
        """Do nothing: complete lines were put out already."""

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding that text will have."""
        return "utf-8"


def _begin_in_fork() -> None:
    for stream in list(_streams):
        stream._begin()


os.register_at_fork(after_in_child=_begin_in_fork)


class RankLog(RankLines):
    """Writes to the trial's log, and to another stream if there is one."""

    def __init__(self, path: Path, rank: int, also: TextIO | None) -> None:
        super().__init__(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._also = also

    def _put(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode(errors="replace"))
        except OSError:
            return  # a full disk must not end a trial that only wanted to print
        if self._also is not None:
            self._also.write(text)

    def fileno(self) -> int:
        """Return the log's descriptor, for child processes."""
        return self._fd

    def finish(self) -> None:
        """Write the last line, and close the log."""
        with self._lock:
            self._finish_line()
            os.close(self._fd)
            self._fd = os.open(os.devnull, os.O_WRONLY)  # a thread that is left may still print

    def __del__(self) -> None:
        """Close the descriptor."""
        try:
            os.close(self._fd)
        except OSError:
            return


def log_file(trial_dir: str, node: int) -> Path:
    """Return the log of ranks on the gang's ``node``: one for all, or one each where nodes share no folder."""
    return Path(trial_dir, f"log-node{node}.txt" if node and store_of(trial_dir) else LOG)


def bring_home(trial_dir: str, since: float, *, over: bool) -> None:
    """Push a trial's files on this node to its store; do nothing where its folder is the storage itself.

    Pushed is what was written ``since`` (seconds since the epoch), and what the store lacks. Once the trial is
    ``over``, the local copy of its last checkpoint is deleted. An error of the store is logged, and fails no trial.
    """
    folder = Path(trial_dir)
    if (store := store_of(folder)) is None:
        return
    try:
        store.push_changed(folder, since, lambda name: not name.endswith(_DRIVERS) and not checkpoints.is_own(name))
        if over:
            delete_local(folder / checkpoints.FOLDER)
    except OSError as error:
        logger.warning("What is in %s could not be brought to %s: %s", folder, shown(folder), error)


def follow(old: Sequence[object], new: io.TextIOBase) -> list[tuple[logging.StreamHandler[Any], Any]]:
    """Let log handlers that write to one of ``old`` write to ``new``; return each with its old stream.

    A handler keeps the stream that was standard error when it was made: Lightning's is made at its import, in a fork
    before Ray has put other streams in the place of Python's own.
    """
    streams = (*old, sys.__stdout__, sys.__stderr__)
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    every = {id(one): one for logger in loggers if isinstance(logger, logging.Logger) for one in logger.handlers}
    moved = [
        (handler, handler.stream)
        for handler in every.values()
        if isinstance(handler, logging.StreamHandler) and any(handler.stream is stream for stream in streams)
    ]
    for handler, _ in moved:
        handler.setStream(new)
    return moved


@contextlib.contextmanager
def redirected(output: RankLines, error: RankLines) -> Iterator[None]:
    """Redirect this process's standard output and error, and its log handlers; finish the streams at the end."""
    saved = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = output, error
    moved = follow(saved, error)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = saved
        for handler, stream in moved:
            handler.setStream(stream)
        for each in dict.fromkeys((output, error)):
            each.finish()


def to_trial_log(trial_dir: str, rank: int, verbose: int, node: int = 0) -> contextlib.AbstractContextManager[None]:
    """Redirect what this process prints to the trial's log; if ``verbose``, to its standard output as well."""
    path = log_file(trial_dir, node)
    if store := store_of(path):
        with contextlib.suppress(OSError), alone(path):
            store.update(path)  # the trial may have run on another node before
    log = RankLog(path, rank, sys.stdout if verbose else None)
    return redirected(log, log)


def to_driver(rank: int, terminal: Terminal, post: Callable[[Text], None]) -> contextlib.AbstractContextManager[None]:
    """Redirect what this process prints to the driver of a job."""
    output, error = (RankStream(rank, terminal, post, error=error) for error in (False, True))
    return redirected(output, error)


class RankStream(RankLines):
    """Posts what a rank prints: complete lines, and a progress bar as it is drawn.

    A progress bar is known by its carriage returns and escapes.
    """

    def __init__(self, rank: int, terminal: Terminal, post: Callable[[Text], None], *, error: bool) -> None:
        super().__init__(rank)
        self._tty = terminal.tty
        self._post = post
        self._error = error
        self._drawing = False

    def _take(self, text: str) -> None:
        if "\r" in text or "\x1b" in text or (self._drawing and not text.strip()):
            self._finish_line()
            self._drawing = not text.endswith("\n")
            self._post(Text(text, self._error))
            return
        if self._drawing and "\n" in text:
            self._drawing = False
            self._post(Text("\n", self._error))
        super()._take(text)

    def _put(self, text: str) -> None:
        self._post(Text(text, self._error))

    def isatty(self) -> bool:
        """Tell whether the driver's own stream is a terminal."""
        return self._tty
