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
import errno
import json
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from tunelight.errors import StorageError
from tunelight.machine.processes import born, is_running, process_table
from tunelight.stores import Store, shown, store_of
from tunelight.stores.atomic import create_atomically, write_atomically

SWEEP_FILE: Final = "sweep.yaml"
RECORD_FILE: Final = "record.jsonl"
OWNERS: Final = "owners"
"""The folder that names the drivers which a sweep has had."""
COMMANDS_FILE: Final = "commands.jsonl"
EVENTS_END: Final = ".tunelight"
"""The suffix of the driver's own TensorBoard files in trials' folders, where trials may write others."""


def why(error: OSError) -> str:
    """Return what went wrong, in the operating system's words."""
    return error.strerror or str(error)


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
    place: str = ""
    """The folder that it works in, as this machine's kernel knows it: another one for a copy."""
    key: str = ""
    """Different for each owner, whatever else is the same."""
    alive: bool = field(default=True, compare=False)
    """Whether it still runs, as far as could be found out."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def parsed(cls, generation: int, text: bytes) -> Owner:
        """Return the owner that a file names; one of whom not even the record is known, if it is no such file."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            data = json.loads(text)
            names = data.keys() & {known.name for known in fields(cls)} - {"generation", "alive"}
            owner = cls(generation, **{name: data[name] for name in names})
            if isinstance(owner.pid, int) and Path(owner.record).name == owner.record:
                return owner
        return cls(generation, record="")

    @property
    def text(self) -> bytes:
        """The contents of its file."""
        return json.dumps({key: value for key, value in vars(self).items() if key != "alive"}).encode()


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
        if self._store is None:
            return create_atomically(path, owner.text)
        if not self._store.create(path, owner.text):
            return False
        for name in _names(self._files):  # of a sweep of the same name that was deleted
            (self._files / name).unlink(missing_ok=True)
        write_atomically(path, owner.text)  # by which readers on this machine know that the driver is here
        return True

    def touch(self, owner: Owner) -> None:
        """Show that an owner is alive; or, if it is over, that it is. Creates no file that was deleted."""
        path = self._path(owner.generation)
        os.utime(path)
        if owner.over:
            write_atomically(path, owner.text)
        if self._store is not None:
            self._store.write(path, owner.text)

    def leave(self, owner: Owner) -> None:
        """Let readers on this machine know that the driver of a store's sweep is not here any more."""
        path = self._path(owner.generation)
        if self._store is not None and Owner.parsed(owner.generation, path.read_bytes()).key == owner.key:
            write_atomically(path, replace(owner, over=True).text)

    def runs(self, owner: Owner) -> bool | None:
        """Tell whether an owner's process runs; None where this machine's table of processes does not tell."""
        if owner.table != process_table() or (owner.place and owner.place != _place(self.folder)):
            return None
        if owner.pid == os.getpid():
            return owner.key in _held_here
        if not is_running(owner.pid):
            return False
        began = born(owner.pid)
        return None if began is None or not owner.born else began == owner.born

    def touched(self, generation: int) -> float:
        """Return when an owner was touched last, by the storage's clock."""
        path = self._path(generation)
        if self._store is not None:
            return (self._store.stat(path) or (0, 0.0))[1]
        with path.open("rb") as stream:  # opened, for a client of a network file system then asks its server
            return os.fstat(stream.fileno()).st_mtime

    def record(self) -> str:
        """Return the name of the file that holds the record: the last owner's, or the one before till that is there."""
        for generation in range(self.newest(), 0, -1):
            with contextlib.suppress(FileNotFoundError):
                name = self.read(generation).record
                if name == RECORD_FILE or (name and self.has(name)):
                    return name
        return RECORD_FILE

    def place(self) -> str:
        """Return what the kernel knows the (working) folder by."""
        if self._store is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        return _place(self.folder)

    def copy_record(self, name: str, to: str) -> None:
        """Copy the whole lines of the record into a file of another name."""
        path, new = self.folder / name, self.folder / to
        data = self._store.read(path) if self._store else path.read_bytes()
        if self._store and path.exists() and (local := path.read_bytes()).startswith(data):
            data = local  # what this machine's driver could not upload before it was lost
        data = data[: data.rfind(b"\n") + 1]
        if self._store:
            self._store.write(new, data)
        else:
            write_atomically(new, data, sync=True)

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


def _place(folder: Path) -> str:
    with contextlib.suppress(OSError):
        found = folder.stat()
        return f"{found.st_dev}:{found.st_ino}"
    return ""


_held_here: set[str] = set()
"""Keys of the owners that this process is."""
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
        self.writing = False
        """Whether a write of this driver may still be on its way at the end: then it is not given up, only silent."""
        self._looked = _uptime()
        self._successor: Owner | None = None

    @property
    def generation(self) -> int:
        """How many owners the sweep has had, with this one."""
        return self.owner.generation

    def held(self, within_s: float = 0.0) -> bool:
        """Look whether another driver has taken the sweep, or begun one of its name; it has then for good.

        A look less than ``within_s`` ago is enough.
        """
        if self._successor is None and _uptime() - self._looked >= within_s:
            self._looked = _uptime()
            with contextlib.suppress(OSError):  # a store that does not answer now may do so at the next look
                owner = self._owners.read(self.generation)
                if owner.key != self.owner.key:
                    self._successor = owner
                elif self._owners.has(f"{OWNERS}/{self.generation + 1}.json"):
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
        _held_here.discard(self.owner.key)
        with contextlib.suppress(OSError):
            if self.held() and not self.writing:
                self._owners.touch(replace(self.owner, over=True))
            else:
                self._owners.leave(self.owner)


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
        instead = "Choose another storage=." if to == RESUMED else "Make it writable."
        instead = "Make room." if error.errno in (errno.ENOSPC, errno.EDQUOT) else instead
        raise StorageError(f"{shown(Path(folder))} cannot be written: {why(error)}. {instead}") from error
    beat = threading.Thread(target=_beat, args=(lease, over), name="tunelight-lease", daemon=True)
    beat.start()
    try:
        yield lease
    finally:
        over.set()
        lease.writing |= not ended(beat)  # what it still writes would come after what says that this is over
        lease.release()
    lease.check()


def ended(thread: threading.Thread) -> bool:
    """Wait for the end of a thread, for a minute in which this process is not stopped; return whether it has ended."""
    for _ in range(60):
        thread.join(1.0)
    return not thread.is_alive()


def _beat(lease: Lease, over: threading.Event) -> None:
    while not over.wait(BEAT_S) and lease.beat():
        pass


def claim(owners: Owners, to: str = RESUMED) -> Lease:
    """Become the next owner of a sweep. Raises: StorageError if another driver is; OSError."""
    _offsets.pop(str(owners.folder.parent), None)
    generation = owners.newest()
    last = owners.read(generation) if generation else None
    name = owners.record()
    begins_file = last is not None and (not _is_surely_over(owners, last, to) or last.record != name)
    owner = Owner(
        generation + 1,
        socket.gethostname(),
        os.getpid(),
        time.strftime("%Y-%m-%d %H:%M:%S"),
        process_table(),
        born(os.getpid()) or 0,
        f"record.{generation + 1}.jsonl" if begins_file else name,
        place=owners.place(),
        key=uuid.uuid4().hex,
    )
    _held_here.add(owner.key)
    lease = Lease(owners, owner)
    try:
        if not owners.create(owner):
            raise _held(owners, owners.read(owner.generation), to)
        if begins_file and to == RESUMED and owners.has(name):
            owners.copy_record(name, owner.record)
    except BaseException:
        lease.release()
        raise
    return lease


def _is_surely_over(owners: Owners, last: Owner, to: str) -> bool:
    """Tell whether an owner can write no more; False if it was only silent. Raises: StorageError if it lives."""
    if last.over:
        return True
    if (runs := owners.runs(last)) is not None:
        if runs:
            raise _held(owners, last, to)
        return True
    known = owners.touched(last.generation)
    if (left := STALE_S - (owners.now() - known)) > 0:
        note = "%s was last run by %s, which has not said that it ended: waiting for a sign of its life, up to %.0f s."
        _log.warning(note, shown(owners.folder), last, left)
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
        alive = owners.runs(owner)
        return replace(owner, alive=owners.now() - owners.touched(generation) < STALE_S if alive is None else alive)
    except OSError:
        return None


def live_driver_of(folder: str | os.PathLike[str]) -> Owner | None:
    """Return the process that runs the sweep in ``folder`` now, if one does."""
    found = driver_of(folder)
    return found if found is not None and found.alive else None


def is_driven_here(folder: Path) -> bool:
    """Tell whether a process on this machine owns a sweep, as far as this machine knows."""
    return _here(folder) is not None


def record_number(name: str) -> int:
    """Return the generation of the owner that began a record, by the record's name."""
    return int(name.split(".")[1]) if name != RECORD_FILE else 1


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
        return owner if not owner.over and Owners(folder).runs(owner) else None
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - a poll of many sweeps makes no Path of each
    except (FileNotFoundError, NotADirectoryError):
        return []


def _newest(names: Iterable[str]) -> int:
    return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)
