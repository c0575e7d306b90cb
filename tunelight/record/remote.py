"""A sweep in an object store, on the driver's side: its record is written here as in any folder, and mirrored there.

Workers bring checkpoints and what else trials leave by themselves (:mod:`tunelight.stores`). The driver's files are
small or grow by lines, and object stores cannot append: a thread brings them there every few seconds, whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tunelight import stores
from tunelight.errors import StorageError
from tunelight.record.names import EVENTS_END, LOCK_FILE, METRICS_FILE, RECORD_FILE, STUDY_FILE, SWEEP_FILE, why

EVERY_S: Final = 5.0
"""How often what has changed is brought to the store; less often where that takes more than ``_SHARE`` of the time."""
_SHARE: Final = 0.1
_FAMILIES: Final = (f"*/{METRICS_FILE}", f"*/events.out.tfevents*{EVENTS_END}")
"""What the driver writes into trials' folders."""

_log = logging.getLogger("tunelight")


def refresh(path: Path) -> None:
    """Have the store's version of one of the driver's files here, unless a driver of this machine writes it just now.

    Nothing happens for paths in no store. A record here that goes on where the store's ends stays: its driver was
    killed before it could bring the rest there. Raises: OSError.
    """
    if stores.inside(path) and not _driven_here(path.parent):
        with stores.alone(path):
            if not _driven_here(path.parent):
                _bring_here(path)


def _bring_here(path: Path) -> None:
    there = stores.stat(path)
    if there is None:
        return
    size, modified = there
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime >= modified and path.stat().st_size >= size:
            return
    held = stores.read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.read_bytes() if path.exists() else b""
    if path.name == RECORD_FILE and known.startswith(held):
        return
    if known and held.startswith(known):
        with path.open("ab") as stream:  # whoever follows it reads on
            stream.write(held[len(known) :])
    else:
        stores.write_atomically(path, held)
    os.utime(path, (modified, modified))


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Raise StorageError where a store, or a folder, does not answer."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{stores.shown(path)} cannot be read: {why(error)}.") from error


def pull(folder: Path) -> None:
    """Have here what a driver needs to go on with a sweep, which it holds. Raises: OSError."""
    if not stores.inside(folder):
        return
    for name in (SWEEP_FILE, RECORD_FILE, STUDY_FILE):
        with stores.alone(folder / name):
            _bring_here(folder / name)
    for path, held in stores.texts(folder, f"*/{METRICS_FILE}").items():
        if not path.exists() or path.stat().st_size < len(held):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(held)


def pull_views(folder: Path) -> bool:
    """Have here what other programs show of a sweep in a store: its study, TensorBoard's files. False for a folder.

    Raises: OSError.
    """
    if not stores.inside(folder):
        return False
    if not _driven_here(folder):
        for path in [folder / STUDY_FILE, *stores.matching(folder, _FAMILIES[1])]:
            refresh(path)
    return True


def pull_lock(folder: Path) -> None:
    """Have the store's word here of who runs a sweep, with its time, if it is of another machine."""
    path = folder / LOCK_FILE
    if stores.inside(path) and not _driven_here(folder) and (there := stores.stat(path)) is not None:
        held = stores.read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a driver that has come meanwhile knows better
            if os.pread(file, len(held) + 1, 0) != held:
                os.ftruncate(file, 0)
                os.pwrite(file, held, 0)
            os.utime(file, (there[1], there[1]))
        except BlockingIOError:
            return
        finally:
            os.close(file)


def push_lock(folder: Path) -> None:
    """Tell the store who runs a sweep; it is told again and again, so that one failure does not matter."""
    with contextlib.suppress(OSError):
        stores.push(folder / LOCK_FILE)


def _driven_here(folder: Path) -> bool:
    """Tell whether a process of this machine holds a sweep."""
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


class StoreMirror:
    """Brings what the driver writes into a sweep's folder to its store. Runs on: driver."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brought: dict[Path, tuple[int, float]] = {}
        self.failed: OSError | None = None
        """Why the store does not take it just now."""

    def bring(self) -> bool:
        """Bring what has changed; False where the store did not take all of it, which is said once."""
        try:
            for path in self._files():
                found = path.stat()
                if self._brought.get(path) == (found.st_size, found.st_mtime):
                    continue
                held = path.read_bytes()
                if path.name in (RECORD_FILE, METRICS_FILE):
                    held = held[: held.rfind(b"\n") + 1]
                stores.write(path, held)
                self._brought[path] = found.st_size, found.st_mtime
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
        top = (one for one in self._folder.iterdir() if not one.name.startswith(".") and one.name != LOCK_FILE)
        inner = (one for pattern in _FAMILIES for one in self._folder.glob(pattern))
        return [one for one in (*top, *inner) if one.is_file()]


@contextlib.contextmanager
def mirrored(folder: Path) -> Iterator[None]:
    """Keep a sweep's store up with its folder meanwhile, and bring the rest at the end; nothing without a store.

    What could not be brought stays in the folder, with which a sweep that is resumed on this machine begins.
    Raises: StorageError where the store takes nothing at the beginning.
    """
    if not stores.inside(folder):
        yield
        return
    mirror, over = StoreMirror(folder), threading.Event()
    if not mirror.bring():
        raise StorageError(
            f"{stores.shown(folder)} cannot be written: {mirror.failed}. Give it what it needs, or choose another "
            "storage=."
        )
    thread = threading.Thread(target=_follow, args=(mirror, over), name="tunelight-mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60.0)
        if folder.exists() and not mirror.bring():
            _log.error("%s lacks the end of the record, which is in %s only.", stores.shown(folder), folder)


def _follow(mirror: StoreMirror, over: threading.Event) -> None:
    pause = 0.0
    while not over.wait(pause):
        began = time.monotonic()
        mirror.bring()
        pause = max(EVERY_S, (time.monotonic() - began) / _SHARE)
