"""Commands to a sweep that runs: ``commands.jsonl``, a file that its driver reads, and whose answers are in the record.

Any process that reaches the sweep's folder may write a command: one line of JSON, appended under a lock (``flock``). Of
a sweep in an object store, which cannot append, that is the working folder on the driver's machine. It names the
driver that it is for by that one's generation (:mod:`tunelight.record.lease`). The driver carries out the commands for
it, and writes its answer, or why it refuses, into the record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunelight.record.lease import COMMANDS_FILE, Owner


@dataclass(frozen=True)
class Command:
    """A command: what to ``do`` (stop, enqueue, branch, set), for a trial's id or the sweep (None)."""

    id: str
    do: str
    trial: str | None
    arguments: Mapping[str, Any]
    driver: int | None = None
    """The generation of the driver that it is for."""


class CommandReader:
    """Reads the commands for a driver; without one, all. Runs on: driver.

    An earlier driver may have died before it answered one: that is not carried out later.
    """

    def __init__(self, folder: str | os.PathLike[str], driver: Owner | None = None) -> None:
        self._path = Path(folder, COMMANDS_FILE)
        self._driver = None if driver is None else driver.generation
        self._read = 0

    def drain(self) -> list[Command]:
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
