"""The record of a sweep in an object store: its driver uploads it, and readers download it before they read.

The driver's files are small or grow by lines, and object stores cannot append, so a thread uploads them again every few
seconds, and the record as soon as it grows: a report that it lacks is trained again if the driver's machine is lost.
Checkpoints and the other files of trials are uploaded by the workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tunelight.errors import StorageError
from tunelight.record.lease import COMMANDS_FILE, EVENTS_END, SWEEP_FILE, Lease, ended, is_driven_here, record_of, why
from tunelight.stores import Store, alone, shown, store_of

EVERY_S: Final = 5.0
"""How often changed files are uploaded; less often if that takes more than ``_SHARE`` of the time."""
_RECORD_S: Final = 0.5
"""How often the record is uploaded if it has grown; less often if that takes more than ``_SHARE`` of the time."""
END_S: Final = 300.0
"""How long the end of a sweep waits for a store, or a disk, that takes nothing."""
_TICK_S: Final = 0.2
_SHARE: Final = 0.1
_LOOK_S: Final = 1.0
"""How long a look at who owns the sweep holds for further files: the record is safe without (decision 0015)."""
_OF_TRIALS: Final = (f"*/events.out.tfevents*{EVENTS_END}",)
"""The files that the driver writes into trials' folders."""

_log = logging.getLogger("tunelight")


# --- readers ----------------------------------------------------------------------------------------------


def refresh(path: Path) -> None:
    """Download a file of a sweep if the store's is newer; call this before reading it.

    Does nothing without a store, nor for files of a driver on this machine. Raises: OSError.
    """
    store = store_of(path)
    if store is None or is_driven_here(path.parent):
        return
    if not path.parent.exists() and store.stat(path) is None:  # there is no such sweep
        return
    with alone(path):
        if is_driven_here(path.parent):  # it has begun meanwhile
            return
        if not store.update(path) and path.name != SWEEP_FILE:  # that is uploaded later than it is written
            path.unlink(missing_ok=True)


def has_record(folder: Path) -> bool:
    """Tell whether a folder is a sweep's, whose record is downloaded. Raises: OSError if a store does not answer."""
    path = record_of(folder)
    refresh(path)
    return os.path.isfile(path)  # noqa: PTH113 - Path's own raises where a name is too long


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Raise StorageError if a store, or a folder, cannot be read."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{shown(path)} cannot be read: {why(error)}.") from error


# --- drivers ----------------------------------------------------------------------------------------------


def pull(folder: Path) -> None:
    """Download what a driver needs to resume a sweep whose lock it holds. Raises: OSError."""
    if (store := store_of(folder)) is None:
        return
    record, file = record_of(folder), folder / SWEEP_FILE
    with alone(record):
        store.update(record)
    stat = store.stat(record)
    if stat is not None and record.stat().st_size > stat[0] and file.exists():
        return  # a driver was killed here before it could upload the rest, and its settings
    with alone(file):
        store.update(file)


class StoreMirror:
    """Uploads what the driver writes into a sweep's folder to its store, while it has the lease. Runs on: driver."""

    def __init__(self, store: Store, folder: Path, lease: Lease) -> None:
        self._store, self._folder, self._lease = store, folder, lease
        self._uploaded: dict[Path, tuple[int, float]] = {}
        self.failed: OSError | None = None
        """Why the last upload failed; None if it did not."""

    def upload(self, *, record_only: bool = False) -> bool:
        """Upload the files that have changed; False if the store did not take all of them, which is logged once."""
        try:
            record, file = self._folder / self._lease.owner.record, self._folder / SWEEP_FILE
            known = record.stat() if record.exists() else None  # what it tells of later is in no file before it
            for path in (file, record) if record_only else self._files():
                stat = known if known and path == record else path.stat()
                if self._uploaded.get(path) == (stat.st_size, stat.st_mtime):
                    continue
                if not self._lease.held(_LOOK_S):
                    return False
                data = path.read_bytes()
                if path == record:
                    data = data[: data.rfind(b"\n", 0, stat.st_size) + 1]
                self._store.write(path, data)
                self._uploaded[path] = stat.st_size, stat.st_mtime
        except OSError as error:
            if self.failed is None:
                _log.warning(
                    "%s cannot be written: %s. The sweep goes on; its record is in %s meanwhile, and brought there as "
                    "soon as that works again.",
                    shown(self._folder),
                    why(error),
                    self._folder,
                )
            self.failed = error
            return False
        self.failed = None
        return True

    def _files(self) -> list[Path]:
        record = self._lease.owner.record
        others = {COMMANDS_FILE, *(path.name for path in self._folder.glob("record*.jsonl") if path.name != record)}
        top = (path for path in self._folder.iterdir() if not path.name.startswith(".") and path.name not in others)
        inner = (path for pattern in _OF_TRIALS for path in self._folder.glob(pattern))
        return sorted((path for path in (*top, *inner) if path.is_file()), key=lambda path: path.name == record)

    def follow(self, over: threading.Event, soon: threading.Event) -> None:
        """Upload the record as it grows, and the rest every few seconds, until it is ``over``."""
        due = record_due = 0.0
        while not over.is_set():
            began = time.monotonic()
            if soon.is_set() or began >= due:
                soon.clear()
                self.upload()
                due = began + max(EVERY_S, (time.monotonic() - began) / _SHARE)
            elif began >= record_due and self.failed is None:
                self.upload(record_only=True)
                record_due = began + max(_RECORD_S, (time.monotonic() - began) / _SHARE)
            soon.wait(_TICK_S)


def written_at_last(write: Callable[[], bool], path: Path) -> bool:
    """Call what writes the end of a sweep until it says that it has, for ``END_S`` at most; return whether it has."""
    end, noted = time.monotonic() + END_S, False
    while not (done := write()) and time.monotonic() < end:
        if not noted:
            _log.warning("Waiting up to %.0f s until %s takes the end of the sweep.", END_S, shown(path))
        noted = True
        time.sleep(_RECORD_S)
    return done


@contextlib.contextmanager
def mirrored(folder: Path, lease: Lease) -> Iterator[Callable[[], None]]:
    """Upload the driver's files while the context lasts, and the rest at its end; does nothing without a store.

    Nothing is uploaded once another host has taken the ``lease``.
    Gives a function that uploads soon, for what somebody waits for. What could not be uploaded stays in the folder,
    and a sweep that is resumed on this machine starts with it.

    Raises: StorageError if the store takes nothing at the beginning.
    """
    if (store := store_of(folder)) is None:
        yield lambda: None
        return
    mirror, over, soon = StoreMirror(store, folder, lease), threading.Event(), threading.Event()
    if not mirror.upload():
        reason = mirror.failed or "another driver has just taken it"
        raise StorageError(
            f"{shown(folder)} cannot be written: {reason}. Give it what it needs, or choose another storage=."
        )
    thread = threading.Thread(target=mirror.follow, args=(over, soon), name="tunelight-mirror", daemon=True)
    thread.start()
    try:
        yield soon.set
    finally:
        over.set()
        soon.set()
        lease.writing = not ended(thread)
        if folder.exists() and not written_at_last(lambda: mirror.upload() or not lease.held(), folder):
            _log.error("%s lacks the end of the record, which is in %s only.", shown(folder), folder)
