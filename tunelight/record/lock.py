"""The lock of a sweep, which one driver at a time holds, and which names its holder.

On one machine the kernel's lock (``flock``) decides: it ends with the process that holds it, however that ends, so a
killed driver leaves none. On a file system that machines share, such locks may be local to each machine. So the holder
also writes its host into the file and touches it every 10 s: the lock of another host is valid until it has not been
touched for 60 s (give or take the difference of the clocks). A holder that was silent for longer, because its machine
slept, may have a successor: it looks before it writes, and stops (:class:`Lease`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tunelight.errors import StorageError
from tunelight.machine.processes import is_running
from tunelight.record.names import LOCK_FILE, why
from tunelight.stores import shown, store_of

BEAT_S: Final = 10.0
"""How often a holder touches its lock."""
STALE_S: Final = 60.0
"""How long after its last touch another host's lock is valid."""
RESUMED: Final = "resumed"


class Lease:
    """A lock that this process holds, as long as no other host takes it. Runs on: driver."""

    def __init__(self, path: Path, text: bytes) -> None:
        self._path, self._text, self._store = path, text, store_of(path)
        self._looked = time.time()
        self._successor: dict[str, Any] | None = None

    def held(self) -> bool:
        """Look whether the lock still names this process. Once another one has taken it, that is so for good."""
        if self._successor is None:
            self._looked = time.time()
            with contextlib.suppress(OSError):  # a store that does not answer now may do so at the next look
                text = self._store.read(self._path) if self._store else self._path.read_bytes()
                if text != self._text:
                    self._successor = _parsed(text)
        return self._successor is None

    def check(self) -> None:
        """Raise StorageError where another driver has taken the sweep. Looks only after half a minute without a look.

        Seconds are the wall clock's, which goes on while a machine sleeps.
        """
        if (self._successor is not None or abs(time.time() - self._looked) > STALE_S / 2) and not self.held():
            holder = self._successor or {}
            by = f"process {holder['pid']} on {holder.get('host', '?')}" if "pid" in holder else "another driver"
            raise StorageError(
                f"{shown(self._path.parent)} was taken over by {by}, after this driver had given no sign of "
                f"life for {STALE_S:.0f} s, as on a machine that sleeps. This driver has stopped, and recorded nothing "
                "since. When the other one has ended, the sweep can be resumed."
            )


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str], to: str = RESUMED) -> Iterator[Lease]:
    """Hold the lock of the sweep in ``folder``, so that no other driver runs it. Runs on: driver.

    ``to`` says what is to be done with the sweep ("resumed", "deleted"), for the error.

    Raises: StorageError naming the host and process that hold it, or where the folder cannot be written.
    """
    path = Path(folder, LOCK_FILE)
    try:
        _pull(path)
        if store_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        instead = "Choose another storage=." if to == RESUMED else "Make it writable."
        raise StorageError(f"{path} cannot be written: {why(error)}. {instead}") from error
    over = threading.Event()
    try:
        lease = Lease(path, _claim(file, path, to))
        beat = threading.Thread(target=_beat, args=(file, path, lease, over), name="tunelight-lock", daemon=True)
        beat.start()
        try:
            yield lease
        finally:
            over.set()
            beat.join(BEAT_S)
            if lease.held():
                with contextlib.suppress(OSError):
                    os.ftruncate(file, 0)  # released: another host need not wait
                    _push(path)
    finally:
        os.close(file)


@dataclass(frozen=True)
class Driver:
    """The holder of a sweep's lock, and whether that process still runs."""

    host: str
    pid: int
    alive: bool
    since: float = field(default=0.0, compare=False)
    """When it took the lock, in seconds since the epoch."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def driver_of(folder: str | os.PathLike[str]) -> Driver | None:
    """Return the driver that runs the sweep in ``folder``; None if there is none. Takes no lock.

    A driver that ended properly left no name. One that was killed did; it is not alive if its process is gone (on this
    host), or if it has not touched its lock for ``STALE_S``.
    """
    path = Path(folder, LOCK_FILE)
    try:
        _pull(path)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        holder, age = _holder(file), time.time() - os.fstat(file).st_mtime
    finally:
        os.close(file)
    if not isinstance(holder.get("pid"), int):
        return None
    host, pid = str(holder.get("host", "?")), holder["pid"]
    since = holder.get("claimed")
    alive = age < STALE_S and (host != _host() or is_running(pid))
    return Driver(host, pid, alive, float(since) if isinstance(since, int | float) else 0.0)


def is_driven_here(folder: Path) -> bool:
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


def _pull(path: Path) -> None:
    """Download a lock from its store, with its time, unless a process on this machine holds it."""
    store = store_of(path)
    if store is None or is_driven_here(path.parent) or (stat := store.stat(path)) is None:
        return
    stored = store.read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # taken meanwhile: its holder's file is newer
        if os.pread(file, len(stored) + 1, 0) != stored:
            os.ftruncate(file, 0)
            os.pwrite(file, stored, 0)
        os.utime(file, (stat[1], stat[1]))
    except BlockingIOError:
        return
    finally:
        os.close(file)


def _push(path: Path) -> None:
    if store := store_of(path):
        store.push(path)


def _claim(file: int, path: Path, to: str) -> bytes:
    """Write this process into the lock; return what was written. Raises: StorageError."""
    try:
        _lock(file)
    except BlockingIOError:
        raise _held(path, _holder(file), to) from None
    except OSError:  # a file system without locks: the contents of the file decide
        pass
    holder = _holder(file)
    age = time.time() - os.fstat(file).st_mtime
    if holder.get("host", _host()) != _host() and age < STALE_S:
        stale = f" It gave a sign of life {max(age, 0):.0f} s ago; after {STALE_S:.0f} s without one"
        raise _held(path, holder, to, stale)
    now = time.time()
    me = {
        "host": _host(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)),
        "claimed": now,
    }
    text = json.dumps(me).encode()
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, text, 0)
        _push(path)
    except OSError as error:
        raise StorageError(
            f"{shown(path)} cannot be written: {why(error)}. Make room, or choose another storage=."
        ) from error
    return text


def _lock(file: int) -> None:
    """Take the kernel's lock, which readers may hold for a moment. Raises: BlockingIOError."""
    for left in reversed(range(10)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                raise
            time.sleep(0.05)


def _held(path: Path, holder: dict[str, Any], to: str, stale: str = " When that has ended") -> StorageError:
    return StorageError(
        f"{shown(path.parent)} is {'run by another driver already' if to == RESUMED else 'running'}: process "
        f"{holder.get('pid', '?')} on {holder.get('host', 'this host')}, since {holder.get('since', '?')}.{stale}, the "
        f"sweep can be {to}."
    )


def _holder(file: int) -> dict[str, Any]:
    try:
        return _parsed(os.pread(file, 4096, 0))
    except OSError:
        return {}


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except ValueError:  # torn: its writer died in between
        return {}
    return found if isinstance(found, dict) else {}


def _host() -> str:
    return socket.gethostname()


def _beat(file: int, path: Path, lease: Lease, over: threading.Event) -> None:
    """Touch the lock until it is released, or another host has taken it."""
    while not over.wait(BEAT_S) and lease.held():
        with contextlib.suppress(OSError):  # the next touch may work
            os.utime(file)
            _push(path)
