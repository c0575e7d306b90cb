"""The driver's side of a sweep in an object store: its record is written to a local folder, and copied to the store.

Workers push checkpoints and other files of trials themselves (:mod:`tunelight.stores`). The driver's files are small or
grow by lines, and object stores cannot append, so a thread uploads them again every few seconds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from tunelight import stores
from tunelight.errors import StorageError
from tunelight.record.names import (
    COMMANDS_FILE,
    EVENTS_END,
    LOCK_FILE,
    METRICS_FILE,
    NOTES_FILE,
    RECORD_FILE,
    SWEEP_FILE,
    why,
)

EVERY_S: Final = 5.0
"""How often changed files are uploaded; less often if that takes more than ``_SHARE`` of the time."""
_SHARE: Final = 0.1
_COMMANDS_S: Final = 0.75
"""Seconds between two looks for commands in a store."""
_FAMILIES: Final = (f"*/{METRICS_FILE}", f"*/events.out.tfevents*{EVENTS_END}")
"""The files that the driver writes into trials' folders."""

_log = logging.getLogger("tunelight")


def refresh(path: Path) -> None:
    """Download one of the driver's files if the store's is newer, unless a driver on this machine writes it now.

    Does nothing for paths in no store. A local record that continues the store's is kept: its driver was killed before
    it could upload the rest. Raises: OSError.
    """
    if stores.inside(path) and not _driven_here(path.parent):
        with stores.alone(path):
            if not _driven_here(path.parent):
                _download(path)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file that several processes write; a torn last line stays one of its own. Raises: OSError.

    In a store, where nothing can be appended, the file is read and written again: of two machines that do so at the
    same moment, one loses its line.
    """
    if stores.inside(path):
        with stores.alone(path):
            before = stores.read(path) if stores.exists(path) else b""
            whole = before + _break_after(before) + line + b"\n"
            stores.write(path, whole)
            stores.write_atomically(path, whole)
        return
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: a line is written by one call
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        data = _break_after(os.pread(file, 1, max(0, size - 1))) + line + b"\n"
        if os.write(file, data) < len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def _break_after(text: bytes) -> bytes:
    return b"" if not text or text.endswith(b"\n") else b"\n"


def refresh_shared(path: Path) -> None:
    """Download a file that several processes write, if the store's is newer. Raises: OSError."""
    if stores.inside(path):
        with stores.alone(path):
            _download(path)


def _download(path: Path) -> None:
    there = stores.stat(path)
    if there is None:
        return
    size, modified = there
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime >= modified and path.stat().st_size >= size:
            return
    stored = stores.read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    local = path.read_bytes() if path.exists() else b""
    if path.name == RECORD_FILE and local.startswith(stored):
        return
    if local and stored.startswith(local):
        with path.open("ab") as stream:  # whoever follows it reads on
            stream.write(stored[len(local) :])
    else:
        stores.write_atomically(path, stored)
    os.utime(path, (modified, modified))


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Raise StorageError if a store, or a folder, cannot be read."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{stores.shown(path)} cannot be read: {why(error)}.") from error


def pull(folder: Path) -> None:
    """Download what a driver needs to resume a sweep whose lock it holds. Raises: OSError."""
    if not stores.inside(folder):
        return
    for name in (SWEEP_FILE, RECORD_FILE):
        with stores.alone(folder / name):
            _download(folder / name)
    for path, stored in stores.texts(folder, f"*/{METRICS_FILE}").items():
        if not path.exists() or path.stat().st_size < len(stored):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored)


def pull_lock(folder: Path) -> None:
    """Download the lock of a sweep, with its time, unless this machine holds it."""
    path = folder / LOCK_FILE
    if stores.inside(path) and not _driven_here(folder) and (there := stores.stat(path)) is not None:
        stored = stores.read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # taken meanwhile: its holder's file is newer
            if os.pread(file, len(stored) + 1, 0) != stored:
                os.ftruncate(file, 0)
                os.pwrite(file, stored, 0)
            os.utime(file, (there[1], there[1]))
        except BlockingIOError:
            return
        finally:
            os.close(file)


def push_lock(folder: Path) -> None:
    """Upload the lock of a sweep. Raises: OSError."""
    stores.push(folder / LOCK_FILE)


def _driven_here(folder: Path) -> bool:
    """Tell whether a process on this machine holds the lock of a sweep."""
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


class Holding(Protocol):
    """Who holds a sweep's lock, as :class:`tunelight.record.Lease`."""

    def held(self) -> bool:
        """Tell whether no other host has taken it."""


class StoreMirror:
    """Uploads what the driver writes into a sweep's folder to its store, while it has the lease. Runs on: driver."""

    def __init__(self, folder: Path, lease: Holding | None = None) -> None:
        self._folder, self._lease = folder, lease
        self._uploaded: dict[Path, tuple[int, float]] = {}
        self.failed: OSError | None = None
        """Why the last upload failed; None if it did not."""

    def upload(self) -> bool:
        """Upload the files that have changed; False if the store did not take all of them, which is logged once."""
        try:
            for path in self._files():
                found = path.stat()
                if self._uploaded.get(path) == (found.st_size, found.st_mtime):
                    continue
                if self._lease is not None and not self._lease.held():
                    return False
                stored = path.read_bytes()
                if path.name in (RECORD_FILE, METRICS_FILE):
                    stored = stored[: stored.rfind(b"\n") + 1]
                stores.write(path, stored)
                self._uploaded[path] = found.st_size, found.st_mtime
        except OSError as error:
            if self.failed is None:
                _log.warning(
                    "%s cannot be written: %s. The sweep goes on; its record is in %s meanwhile, and brought there as "
                    "soon as that works again.",
                    stores.shown(self._folder),
                    why(error),
                    self._folder,
                )
            self.failed = error
            return False
        self.failed = None
        return True

    def _files(self) -> list[Path]:
        others = (LOCK_FILE, NOTES_FILE, COMMANDS_FILE)  # whoever writes them uploads them
        top = (one for one in self._folder.iterdir() if not one.name.startswith(".") and one.name not in others)
        inner = (one for pattern in _FAMILIES for one in self._folder.glob(pattern))
        return [one for one in (*top, *inner) if one.is_file()]


@contextlib.contextmanager
def mirrored(folder: Path, lease: Holding | None = None) -> Iterator[Callable[[], None]]:
    """Upload the driver's files while the context lasts, and the rest at its end; does nothing without a store.

    Nothing is uploaded once another host has taken the ``lease``.

    Commands that others have put there are downloaded. Gives a function that uploads soon, for what somebody waits for.

    What could not be uploaded stays in the folder, and a sweep that is resumed on this machine starts with it.
    Raises: StorageError if the store takes nothing at the beginning.
    """
    if not stores.inside(folder):
        yield lambda: None
        return
    mirror, over, soon = StoreMirror(folder, lease), threading.Event(), threading.Event()
    if not mirror.upload():
        said = mirror.failed or "another driver has just taken it"
        raise StorageError(
            f"{stores.shown(folder)} cannot be written: {said}. Give it what it needs, or choose another storage=."
        )
    thread = threading.Thread(
        target=_follow, args=(mirror, folder / COMMANDS_FILE, over, soon), name="tunelight-mirror", daemon=True
    )
    thread.start()
    try:
        yield soon.set
    finally:
        over.set()
        soon.set()
        thread.join(60.0)
        if folder.exists() and not mirror.upload() and (lease is None or lease.held()):
            _log.error("%s lacks the end of the record, which is in %s only.", stores.shown(folder), folder)


def _follow(mirror: StoreMirror, commands: Path, over: threading.Event, soon: threading.Event) -> None:
    due = 0.0
    while not over.is_set():
        began = time.monotonic()
        if soon.is_set() or began >= due:
            soon.clear()
            mirror.upload()
            took = time.monotonic() - began
            due = began + max(EVERY_S, took / _SHARE)
        with contextlib.suppress(OSError):  # a store that does not answer now may do so at the next look
            refresh_shared(commands)
        soon.wait(_COMMANDS_S)
