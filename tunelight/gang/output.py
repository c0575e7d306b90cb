"""What ranks print, to the trial's log; each line begins with its rank."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tunelight.checkpoints import files as checkpoints
from tunelight.stores import alone, delete_local, shown, store_of

LOG = "log.txt"
_DRIVERS = ".tunelight"
"""The end of the names of files in a trial's folder that the driver writes and uploads itself."""

logger = logging.getLogger(__name__)
_streams: weakref.WeakSet[RankLines] = weakref.WeakSet()


class RankLines(io.TextIOWrapper):
    """A text stream that puts out complete lines, each with its rank in front. Safe for threads and in forks."""

    def __init__(self, rank: int) -> None:
        self._prefix = f"[{rank}] ".encode()
        super().__init__(Bytes(self.take), "utf-8", "replace", write_through=True)  # type: ignore[arg-type]  # it has no name
        self._begin()
        _streams.add(self)

    def _begin(self) -> None:
        """Start without a line. A fork has no thread that could finish the parent's line or release its lock."""
        self._part = b""
        self._lock = threading.Lock()

    def take(self, data: bytes) -> None:
        """Take text; a line is put out when it is complete."""
        with self._lock:
            self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._part = (self._part + data).split(b"\n")
        if lines:
            self._put(b"".join(b"%s%s\n" % (self._prefix, line) for line in lines))

    def _put(self, lines: bytes) -> None:
        """Put out complete lines."""
        raise NotImplementedError

    def _finish_line(self) -> None:
        if self._part:
            RankLines._take(self, b"\n")

    def finish(self) -> None:
        """Put out the last line, which may be incomplete."""
        self.flush()
        with self._lock:
            self._finish_line()

    def close(self) -> None:
        """Do nothing: a thread that is left may still print."""

    def detach(self) -> Any:
        """Return the bytes, and stay: a log handler may have the stream."""
        self.flush()
        return self.buffer


class Bytes(io.BufferedIOBase):
    """The bytes below a stream of text, given to a function."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take

    def write(self, data: Any) -> int:
        """Take bytes."""
        self._take(data := bytes(data))
        return len(data)

    def writable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing: it outlives streams that training code has made of it."""


def _begin_in_fork() -> None:
    for stream in list(_streams):
        stream._begin()


os.register_at_fork(after_in_child=_begin_in_fork)


class RankLog(RankLines):
    """Writes to the trial's log, and to other descriptors, which become its own; once finished, to nothing."""

    def __init__(self, path: Path, rank: int, *also: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open = [os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), *also]
        super().__init__(rank)

    def fileno(self) -> int:
        """Return the log's descriptor; this process's own output once that is closed."""
        return next(iter(self._open), 1)

    def _put(self, lines: bytes) -> None:
        for descriptor in self._open:
            with contextlib.suppress(OSError):  # a full disk must not end a trial that only wanted to print
                os.write(descriptor, lines)

    def finish(self) -> None:
        """Write the last line, and close the log. A thread that is left may still print."""
        super().finish()
        with self._lock:
            self._close()

    def _close(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                os.close(self._open.pop())

    __del__ = _close


def bring_home(trial_dir: str, since: float, *, over: bool) -> None:
    """Push a trial's files on this node to its store; do nothing where its folder is the storage itself.

    Pushed is what was written ``since`` (seconds since the epoch), and what the store lacks. Once the trial is
    ``over``, local copies of checkpoints that the store has are deleted, and no others: another rank, or the trial's
    next gang, may still be writing one. An error of the store is logged, and fails no trial.
    """
    folder = Path(trial_dir)
    if (store := store_of(folder)) is None:
        return
    try:
        store.push_changed(folder, since, lambda name: not name.endswith(_DRIVERS) and not checkpoints.is_own(name))
        for info in checkpoints.find(folder) if over else ():
            delete_local(Path(info.path))
    except OSError as error:
        logger.warning("What is in %s could not be brought to %s: %s", folder, shown(folder), error)


def follow(old: Sequence[object], new: Any) -> list[tuple[logging.StreamHandler[Any], Any]]:
    """Let log handlers that write to one of ``old`` write to ``new``; return each with its old stream.

    A handler keeps the stream that was standard error when it was made: Lightning's is made at its import, in a fork
    before Ray has put other streams in the place of Python's own.
    """
    streams = (*old, sys.__stdout__, sys.__stderr__)
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    every = {id(h): h for logger in loggers if isinstance(logger, logging.Logger) for h in logger.handlers}
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
    """Redirect this process's standard output and error, and its log handlers; finish the streams at the end.

    What libraries and child processes write to the descriptors 1 and 2 goes to those of the streams.
    """
    saved = (sys.stdout, sys.stderr)
    descriptors = (os.dup(1), os.dup(2))
    os.dup2(output.fileno(), 1)
    os.dup2(error.fileno(), 2)
    sys.stdout, sys.stderr = output, error
    moved = follow(saved, error)
    try:
        yield
    finally:
        for each in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever training code has put there
                each.flush()
        sys.stdout, sys.stderr = saved
        for handler, old in moved:
            handler.setStream(old)
        with contextlib.suppress(ValueError):  # what C has kept; it is named otherwise on macOS
            ctypes.pythonapi.fflush(ctypes.c_void_p.in_dll(ctypes.pythonapi, "stdout"))
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for stream in dict.fromkeys((output, error)):
            stream.finish()


def to_trial_log(trial_dir: str, rank: int, verbose: int, node: int = 0) -> contextlib.AbstractContextManager[None]:
    """Redirect what this process prints to the trial's log; if ``verbose``, to its standard output as well."""
    path = Path(trial_dir, f"log-node{node}.txt" if node and store_of(trial_dir) else LOG)  # else it is shared
    if store := store_of(path):
        with contextlib.suppress(OSError), alone(path):
            store.update(path)  # the trial may have run on another node before
    log = RankLog(path, rank, *([os.dup(1)] if verbose else []))  # `redirected` gives 1 to the log itself
    return redirected(log, log)
