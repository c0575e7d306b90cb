"""Commands to a sweep that runs: ``commands.jsonl``, a file that its driver reads, and whose answers are in the record.

Any process that reaches the sweep's folder may write a command: one line of JSON, appended under a lock (``flock``). Of
a sweep in an object store, which cannot append, that is the working folder on the driver's machine. It names the
driver that it is for by that one's generation (:mod:`tunelight.record.lease`). The driver carries out the commands for
it, and writes its answer, or why it refuses, into the record.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tunelight.errors import CommandError, StorageError
from tunelight.record.lease import COMMANDS_FILE, Owner, driver_of, is_driven_here, why
from tunelight.record.state import SweepState
from tunelight.stores import store_of

LIMIT_S: Final = 30.0
"""How long an answer may take, of a driver that need not wait for a trial."""
_LOOK_S: Final = 0.1


@dataclass(frozen=True)
class Command:
    """A command: what to ``do`` (stop, enqueue, branch, set), for a trial's id or the sweep (None)."""

    id: str
    do: str
    trial: str | None
    arguments: Mapping[str, Any]
    driver: int | None = None
    """The generation of the driver that it is for."""


def send(
    folder: str | os.PathLike[str], do: str, trial: str | None = None, *, driver: Owner | None = None, **arguments: Any
) -> str:
    """Write a command to a driver; return its id, by which the record has its answer. Raises: StorageError."""
    command = uuid.uuid4().hex
    line = {"id": command, "time": time.time(), "do": do, "trial": trial, "arguments": arguments}
    if driver is not None:
        line["driver"] = driver.generation
    path = Path(folder, COMMANDS_FILE)
    try:
        _append(path, json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {why(error)}. The sweep was told nothing; make it writable, or make room."
        ) from error
    return command


def _append(path: Path, line: bytes) -> None:
    """Append a line. A torn last line, whose writer was killed, stays one of its own."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: a line is written by one call
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if os.pread(file, 1, max(0, size - 1)) not in (b"", b"\n"):
            line = b"\n" + line
        if os.write(file, line) < len(line):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


class Following(Protocol):
    """Whatever follows a record, as :class:`tunelight.record.RecordFollower` does."""

    @property
    def folder(self) -> Path: ...  # noqa: D102

    @property
    def state(self) -> SweepState: ...  # noqa: D102

    def look(self) -> object: ...  # noqa: D102


def ask(
    follower: Following,
    do: str,
    trial: str | None = None,
    *,
    over: Callable[[], bool] = lambda: False,
    limit_s: float = LIMIT_S,
    **arguments: Any,
) -> str:
    """Send a command, wait for the driver's answer in the record, and return it.

    Args:
        follower: of the sweep's record.
        do: what to do; see :class:`Command`.
        trial: the id of the trial that it is for.
        over: tells whether to wait no longer.
        limit_s: how long to wait, in seconds.
        arguments: of the command.

    Raises: CommandError where the driver refuses, has ended, or does not answer in time; StorageError.
    """
    folder = follower.folder
    driver = _alive(folder)
    if driver is None:
        raise CommandError(f"No process runs the sweep {folder.name}, so it cannot be told to {do}.")
    if store_of(folder) and not is_driven_here(folder):
        raise CommandError(
            f"The sweep {folder.name} is in an object store, and {driver} runs it: tell it to {do} on that machine."
        )
    command = send(folder, do, trial, driver=driver, **arguments)
    end = time.monotonic() + limit_s
    while True:
        ended = _alive(folder) is None
        time.sleep(_LOOK_S)
        follower.look()
        if command in follower.state.answers:
            break
        if ended:
            raise CommandError(f"The sweep {folder.name} ended before it was told to {do}.")
        if over() or time.monotonic() > end:
            raise CommandError(
                f"The driver of {folder.name} ({driver}) has not answered yet. It may be busy, or wait for a trial; it "
                "does so all the same, and its answer will be in the record."
            )
    carried_out, said = follower.state.answers[command]
    if not carried_out:
        raise CommandError(said)
    return said


def _alive(folder: Path) -> Owner | None:
    """Return the process that runs the sweep, if one does."""
    found = driver_of(folder)
    return found if found is not None and found.alive else None


class CommandReader:
    """Reads the commands for a driver; without one, all. Runs on: driver.

    An earlier driver may have died before it answered one: that is not carried out later.
    """

    def __init__(self, folder: str | os.PathLike[str], driver: Owner | None = None) -> None:
        self._path = Path(folder, COMMANDS_FILE)
        self._driver = None if driver is None else driver.generation
        self._read = 0

    def news(self) -> list[Command]:
        """Return the commands since the last call. Lines that are no command are left out. Raises: OSError.

        A line without its line break is not written yet.
        """
        try:
            size = self._path.stat().st_size
            if size < self._read:  # it was written anew
                self._read = 0
            if size == self._read:
                return []
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                chunks = stream.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        self._read += sum(len(chunk) + 1 for chunk in chunks)
        commands = map(_command, chunks)
        return [command for command in commands if command is not None and self._driver in (None, command.driver)]


def _command(chunk: bytes) -> Command | None:
    """Return the command in a line; None for what is not one."""
    try:
        line = json.loads(chunk)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("trial"), str | None):
        return None
    known, do, arguments, driver = line.get("id"), line.get("do"), line.get("arguments"), line.get("driver")
    if not (isinstance(known, str) and isinstance(do, str) and isinstance(arguments, dict)):
        return None
    return Command(known, do, line.get("trial"), arguments, driver if isinstance(driver, int) else None)
