"""Commands to a sweep that runs: ``commands.jsonl``, a file that its driver reads, and whose answers are in the record.

Any process that reaches the sweep's folder may write a command: one line of JSON, appended under a lock. It names the
driver that it is for by the time at which that took the sweep, as its lock says. The driver carries out the commands
for it, whatever the clocks of other machines say, and writes its answer, or why it refuses, into the record.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tunelight import stores
from tunelight.errors import CommandError, StorageError
from tunelight.record.lock import Driver, driver_of
from tunelight.record.names import COMMANDS_FILE, why
from tunelight.record.remote import append_line
from tunelight.record.state import SweepState

_LIMIT_S: Final = 30.0
"""How long an answer may take."""
_LOOK_S: Final = 0.1


@dataclass(frozen=True)
class Command:
    """A command: what to ``do`` (stop, pause, resume, enqueue, set, resize), for a trial's id or the sweep (None)."""

    id: str
    do: str
    trial: str | None
    arguments: Mapping[str, Any]
    driver: float | None = None
    """When the driver that it is for took the sweep, by that driver's clock."""


def send(
    folder: str | os.PathLike[str], do: str, trial: str | None = None, *, driver: Driver | None = None, **arguments: Any
) -> str:
    """Write a command to a driver; return its id, by which the record has its answer. Raises: StorageError."""
    path, command = Path(folder, COMMANDS_FILE), uuid.uuid4().hex
    line = {"id": command, "time": time.time(), "do": do, "trial": trial, "arguments": arguments}
    if driver is not None:
        line["driver"] = driver.since
    try:
        append_line(path, json.dumps(line).encode())
    except OSError as error:
        raise StorageError(
            f"{stores.shown(path)} cannot be written: {why(error)}. The sweep was told nothing; make it writable, or "
            "make room."
        ) from error
    return command


class Following(Protocol):
    """Who follows a record, as :class:`tunelight.record.RecordFollower` does."""

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        ...

    @property
    def state(self) -> SweepState:
        """What was read so far."""
        ...

    def look(self) -> object:
        """Read what was written since the last call. Raises: StorageError."""
        ...


def ask(
    follower: Following,
    do: str,
    trial: str | None = None,
    *,
    over: Callable[[], bool] = lambda: False,
    **arguments: Any,
) -> str:
    """Send a command, wait for the driver's answer in the record, and return it.

    Args:
        follower: of the sweep's record.
        do: what to do; see :class:`Command`.
        trial: the id of the trial that it is for.
        over: tells whether to wait no longer.
        arguments: of the command.

    Raises: CommandError where the driver refuses, has ended, or does not answer within 30 seconds; StorageError.
    """
    folder = follower.folder
    driver = _alive(folder)
    if driver is None:
        raise CommandError(f"No process runs the sweep {folder.name}, so it cannot be told to {do}.")
    command = send(folder, do, trial, driver=driver, **arguments)
    end = time.monotonic() + _LIMIT_S
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
                f"The driver of {folder.name} ({driver}) has not answered yet. It may be busy; its answer will be in "
                "the record."
            )
    carried_out, said = follower.state.answers[command]
    if not carried_out:
        raise CommandError(said)
    return said


def _alive(folder: Path) -> Driver | None:
    """Return the process that runs the sweep, if one does."""
    found = driver_of(folder)
    return found if found is not None and found.alive else None


class CommandReader:
    """Reads the commands for a driver; without one, all. Runs on: driver.

    An earlier driver may have died before it answered one: that is not carried out later. Of a sweep in a store,
    :func:`tunelight.record.mirrored` brings the file here.
    """

    def __init__(self, folder: str | os.PathLike[str], driver: Driver | None = None) -> None:
        self._path = Path(folder, COMMANDS_FILE)
        self._driver = None if driver is None else driver.since
        self._read = 0

    def news(self) -> list[Command]:
        """Return the commands since the last call. Lines that are no command are left out. Raises: OSError."""
        try:
            if self._path.stat().st_size <= self._read:
                return []
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                chunks = stream.read().split(b"\n")
        except FileNotFoundError:
            return []
        self._read += sum(len(chunk) + 1 for chunk in chunks[:-1])  # behind the last line break: not written yet
        found = (_command(chunk) for chunk in chunks[:-1])
        return [command for command in found if command is not None and self._driver in (None, command.driver)]


def _command(chunk: bytes) -> Command | None:
    """Return the command in a line; None for what is not one."""
    try:
        line = json.loads(chunk)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("arguments"), dict):
        return None
    known, do, trial, driver = line.get("id"), line.get("do"), line.get("trial"), line.get("driver")
    if not (isinstance(known, str) and isinstance(do, str) and isinstance(trial, str | None)):
        return None
    return Command(known, do, trial, line["arguments"], driver if isinstance(driver, int | float) else None)
