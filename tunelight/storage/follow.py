"""A record that another process writes: read as it grows."""

from __future__ import annotations

import os
from pathlib import Path

from tunelight.errors import StorageError
from tunelight.storage.files import RECORD_FILE
from tunelight.storage.record import parse, read_lines
from tunelight.storage.state import SweepState, apply


class Follower:
    """Keeps the live view of a sweep that another process runs; reads only what is new.

    Raises: StorageError where ``folder`` is no sweep, or its record cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.state = SweepState()
        self._path = self.folder / RECORD_FILE
        self._read = 0
        self._file: int | None = None
        if not self._path.exists():
            read_lines(self.folder)  # says what is wrong

    def look(self) -> bool:
        """Take in the lines that were written since; return whether there were any. Raises: StorageError."""
        try:
            with self._path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if found.st_size < self._read or self._file not in (None, found.st_ino):
                    self._read, self.state = 0, SweepState()  # it was repaired, or is another sweep's by now
                self._file = found.st_ino
                stream.seek(self._read)
                chunks = stream.read().split(b"\n")
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read any more: {error.strerror}.") from error
        for chunk in chunks[:-1]:  # behind the last line break: not written yet
            self._take(chunk)
            self._read += len(chunk) + 1
        return len(chunks) > 1

    def _take(self, chunk: bytes) -> None:
        line = parse(chunk)
        try:
            if line is None:
                raise ValueError("its checksum does not fit")
            apply(self.state, line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{self._path} is damaged {self._read} bytes in ({error}). If its driver runs no more, "
                "tunelight.run(..., resume='force') repairs it."
            ) from error
