"""The lease of a sweep: which driver owns it. Each owner has a generation, one higher than the owner before it.

``owners/1.json``, ``owners/2.json``, ... in the sweep's folder, or in its store, name the drivers that it has had. A
driver takes the sweep by creating the next file, which only one can; touches it every few seconds; and marks it at its
end. A driver that has not done so is alive if its process is: on the same machine the table of processes says so,
elsewhere that its file was touched lately. Ages are by the clock of the file system or store that sets the times of
files, so the clocks of machines need not agree.

A driver that was silent for too long, because its machine slept or was cut off, may wake up beside its successor. It
looks for one before it writes, and ends. What it writes before it has looked does no harm: a successor that cannot be
sure of its end writes the record into a file of its own, whose name holds its generation, and readers take the file of
the last owner (:func:`record_of`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tunelight.errors import StorageError
from tunelight.machine.processes import born, is_running, process_table
from tunelight.record.names import OWNERS, RECORD_FILE, why
from tunelight.stores import Store, shown, store_of
from tunelight.stores.atomic import write_atomically

_log = logging.getLogger("tunelight")
BEAT_S: Final = 5.0
"""How often an owner touches its file."""
STALE_S: Final = 20.0
"""How long after its last touch an owner on another machine is taken to be alive."""
_POLL_S: Final = 0.5
_CLOCK_S: Final = 600.0
"""How long what was found about a storage's clock is believed."""
RESUMED: Final = "resumed"


@dataclass(frozen=True)
class Owner:
    """A driver that owns a sweep, or has owned it."""

    generation: int
    host: str = "?"
    pid: int = 0
    since: str = "?"
    """When it took the sweep, by its own clock, for people."""
    table: str = ""
    """The table of processes that ``pid`` is from."""
    born: int = 0
    """When the process began, in that table's own unit; 0: not known."""
    record: str = RECORD_FILE
    """The file that it writes the record to."""
    over: bool = False
    """Whether it has given the sweep up."""
    key: str = ""
    """Different for each owner, whatever else is the same."""
    alive: bool = field(default=True, compare=False)
    """Whether it still runs, as far as could be found out."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def parsed(cls, generation: int, text: bytes) -> Owner:
        """Return the owner that a file names; one of whom nothing is known if it is torn."""
        try:
            owner = cls(**{**json.loads(text), "generation": generation})
            known = isinstance(owner.pid, int) and Path(owner.record).name == owner.record
        except (ValueError, TypeError):  # its writer died in between
            known = False
        return owner if known else cls(generation)

    @property
    def text(self) -> bytes:
        """The contents of its file."""
        return json.dumps({key: value for key, value in vars(self).items() if key != "alive"}).encode()

    @property
    def runs(self) -> bool | None:
        """Whether its process runs; None where this machine's table of processes does not tell."""
        if self.table != process_table():
            return None
        return is_running(self.pid) and born(self.pid) == self.born


class Owners:
    """The owners of the sweep in a folder, as its storage has them. All methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / OWNERS
        self._store: Store | None = store_of(folder)

    def newest(self) -> int:
        """Return the generation of the last owner; 0 if there was none."""
        if self._store is None:
            return _newest(_names(self._files))
        return _newest(path.name for path in self._store.listed(self.folder, f"{OWNERS}/*.json"))

    def read(self, generation: int) -> Owner:
        """Return an owner."""
        path = self._path(generation)
        return Owner.parsed(generation, self._store.read(path) if self._store else path.read_bytes())

    def create(self, owner: Owner) -> bool:
        """Enter the next owner; False if another one was faster."""
        path = self._path(owner.generation)
        path.parent.mkdir(parents=self._store is not None, exist_ok=True)
        if self._store is not None:
            if not self._store.create(path, owner.text):
                return False
            write_atomically(path, owner.text)  # by which readers on this machine know that the driver is here
            return True
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(file, owner.text)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        return True

    def touch(self, owner: Owner) -> None:
        """Show that an owner is alive; or, if it is over, that it is. Creates no file that was deleted."""
        path = self._path(owner.generation)
        if owner.over:
            with path.open("r+b") as stream:
                stream.write(owner.text)
                stream.truncate()
        else:
            os.utime(path)
        if self._store is not None:
            self._store.write(path, owner.text)

    def touched(self, generation: int) -> float:
        """Return when an owner was touched last, by the storage's clock."""
        path = self._path(generation)
        if self._store is not None:
            return (self._store.stat(path) or (0, 0.0))[1]
        with path.open("rb") as stream:  # opened, for a client of a network file system then asks its server
            return os.fstat(stream.fileno()).st_mtime

    def age_s(self, generation: int) -> float:
        """Return the seconds since an owner's last touch, by the storage's clock."""
        return max(0.0, self.now() - self.touched(generation))

    def record(self) -> str:
        """Return the name of the file that holds the record: the last owner's, or the one before till that is there."""
        for generation in range(self.newest(), 0, -1):
            with contextlib.suppress(FileNotFoundError):
                name = self.read(generation).record
                if name == RECORD_FILE or self.has(name):
                    return name
        return RECORD_FILE

    def copy_record(self, name: str, to: str) -> None:
        """Copy the whole lines of the record into a file of another name."""
        path, new = self.folder / name, self.folder / to
        data = self._store.read(path) if self._store else path.read_bytes()
        write = self._store.write if self._store else write_atomically
        write(new, data[: data.rfind(b"\n") + 1])

    def has(self, name: str) -> bool:
        """Tell whether the sweep's folder has a file."""
        path = self.folder / name
        return path.exists() if self._store is None else self._store.stat(path) is not None

    def _path(self, generation: int) -> Path:
        return self._files / f"{generation}.json"

    def now(self) -> float:
        """Return the time by the clock that sets the times of files; by this machine's where nothing can be written."""
        offset, found = _offsets.get(str(self.folder.parent), (0.0, -_CLOCK_S))
        if _uptime() - found >= _CLOCK_S:
            offset = time.time() - _uptime()
            with contextlib.suppress(OSError):
                offset = self._probed() - _uptime()
            _offsets[str(self.folder.parent)] = offset, _uptime()
        return _uptime() + offset

    def _probed(self) -> float:
        if self._store is None:
            with tempfile.TemporaryFile(dir=self._files) as stream:
                return os.fstat(stream.fileno()).st_mtime
        path = self._files / f"clock-{uuid.uuid4().hex}"
        self._store.write(path, b"")
        try:
            return (self._store.stat(path) or (0, time.time()))[1]
        finally:
            self._store.delete(path)


_offsets: dict[str, tuple[float, float]] = {}
"""Of each storage folder: its clock, less the time since this machine's start, and when that was found."""


def _uptime() -> float:
    """Return seconds that no one sets, and that go on while the machine sleeps where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Lease:
    """The sweep that this process owns, until another driver takes it. Runs on: driver."""

    def __init__(self, owners: Owners, owner: Owner) -> None:
        self.owner = owner
        self._owners = owners
        self._looked = _uptime()
        self._successor: Owner | None = None

    @property
    def generation(self) -> int:
        """How many owners the sweep has had, with this one."""
        return self.owner.generation

    def held(self) -> bool:
        """Look whether another driver has taken the sweep; it has then for good."""
        if self._successor is None:
            self._looked = _uptime()
            with contextlib.suppress(OSError):  # a store that does not answer now may do so at the next look
                if self._owners.has(f"{OWNERS}/{self.generation + 1}.json"):
                    self._successor = Owner(self.generation + 1)
                    self._successor = self._owners.read(self.generation + 1)
        return self._successor is None

    def check(self) -> None:
        """Raise StorageError where another driver has taken the sweep. Looks only some seconds after the last look."""
        if (self._successor is not None or _uptime() - self._looked > 2 * BEAT_S) and not self.held():
            raise StorageError(
                f"{shown(self._owners.folder)} was taken over by {self._successor}, after this driver had given no "
                f"sign of life for {STALE_S:.0f} s, as on a machine that sleeps or is cut off. This driver has "
                "stopped, and recorded nothing since. When the other one has ended, the sweep can be resumed."
            )

    def beat(self) -> bool:
        """Show that this driver is alive; False if another one has the sweep."""
        if not self.held():
            return False
        with contextlib.suppress(OSError):  # the next one may work
            self._owners.touch(self.owner)
        return True

    def release(self) -> None:
        """Give the sweep up, so that others need not wait."""
        if self.held():
            with contextlib.suppress(OSError):
                self._owners.touch(replace(self.owner, over=True))


@contextlib.contextmanager
def leased(folder: str | os.PathLike[str], to: str = RESUMED) -> Iterator[Lease]:
    """Own the sweep in ``folder``, so that no other driver runs it. Runs on: driver.

    Where its last owner is on another machine and has given no sign of its end, this waits until it is seen to live,
    or has been silent for ``STALE_S``. ``to`` says what is to be done with the sweep ("resumed", "deleted"), for the
    error.

    Raises: StorageError naming the host and process that own it, or where the folder cannot be written; at the end, if
        another driver has taken the sweep meanwhile.
    """
    owners, over = Owners(Path(folder)), threading.Event()
    try:
        lease = claim(owners, to)
    except StorageError:
        raise
    except OSError as error:
        instead = "Make room, or choose another storage=." if to == RESUMED else "Make it writable."
        raise StorageError(f"{shown(Path(folder))} cannot be written: {why(error)}. {instead}") from error
    beat = threading.Thread(target=_beat, args=(lease, over), name="tunelight-lease", daemon=True)
    beat.start()
    try:
        yield lease
    finally:
        over.set()
        beat.join(BEAT_S)
        lease.release()
    lease.check()


def _beat(lease: Lease, over: threading.Event) -> None:
    while not over.wait(BEAT_S) and lease.beat():
        pass


def claim(owners: Owners, to: str = RESUMED) -> Lease:
    """Become the next owner of a sweep. Raises: StorageError if another driver is; OSError."""
    generation = owners.newest()
    last = owners.read(generation) if generation else None
    name = owners.record()
    own = last is not None and (not _is_surely_over(owners, last, to) or last.record != name)
    owner = Owner(
        generation + 1,
        socket.gethostname(),
        os.getpid(),
        time.strftime("%Y-%m-%d %H:%M:%S"),
        process_table(),
        born(os.getpid()),
        f"record.{generation + 1}.jsonl" if own else name,
        key=uuid.uuid4().hex,
    )
    if not owners.create(owner):
        raise _held(owners, owners.read(owner.generation), to)
    if own and owners.has(name):
        owners.copy_record(name, owner.record)
    return Lease(owners, owner)


def _is_surely_over(owners: Owners, last: Owner, to: str) -> bool:
    """Tell whether an owner can write no more; False if it was only silent. Raises: StorageError if it lives."""
    if last.over:
        return True
    if last.runs is not None:
        if last.runs:
            raise _held(owners, last, to)
        return True
    known = owners.touched(last.generation)
    if (left := STALE_S - (owners.now() - known)) > 0:
        _log.warning(
            "%s was last run by %s, which has not said that it ended: waiting for a sign of its life, up to %.0f s.",
            shown(owners.folder),
            last,
            left,
        )
    while owners.now() - known < STALE_S:
        time.sleep(_POLL_S)
        if owners.touched(last.generation) != known:
            raise _held(owners, last, to, f"It gives signs of life; {STALE_S:.0f} s after the last one")
    return False


def _held(owners: Owners, owner: Owner, to: str, when: str = "When that has ended") -> StorageError:
    return StorageError(
        f"{shown(owners.folder)} is {'run by another driver already' if to == RESUMED else 'running'}: {owner}, since "
        f"{owner.since}. {when}, the sweep can be {to}."
    )


# --- readers ----------------------------------------------------------------------------------------------


def driver_of(folder: str | os.PathLike[str]) -> Owner | None:
    """Return the driver that runs the sweep in ``folder``; None if there is none. Becomes no owner.

    A driver that was killed is the owner still; it is not ``alive`` if its process is gone (on this machine), or if it
    has given no sign of life for ``STALE_S``.
    """
    if (owner := _here(Path(folder))) is not None:
        return owner
    owners = Owners(Path(folder))
    try:
        generation = owners.newest()
        owner = owners.read(generation) if generation else None
        if owner is None or owner.over:
            return None
        alive = owner.runs
        return replace(owner, alive=owners.age_s(generation) < STALE_S if alive is None else alive)
    except OSError:
        return None


def is_driven_here(folder: Path) -> bool:
    """Tell whether a process on this machine owns a sweep, as far as this machine knows."""
    return _here(folder) is not None


def record_of(folder: str | os.PathLike[str]) -> Path:
    """Return the file that holds the record of a sweep. Raises: OSError if a store does not answer."""
    folder = Path(folder)
    owner = _here(folder)
    return folder / (Owners(folder).record() if owner is None else owner.record)


def _here(folder: Path) -> Owner | None:
    """Return the owner of a sweep whose process runs on this machine, by the files in its (working) folder."""
    if (generation := _newest(_names(folder / OWNERS))) == 0:
        return None
    try:
        owner = Owner.parsed(generation, (folder / OWNERS / f"{generation}.json").read_bytes())
    except OSError:
        return None
    return owner if not owner.over and owner.runs else None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - a poll of many sweeps makes no Path of each
    except (FileNotFoundError, NotADirectoryError):
        return []


def _newest(names: Iterable[str]) -> int:
    return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)
