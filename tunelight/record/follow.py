"""Follow a record that another process writes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from tunelight import stores
from tunelight.errors import StorageError
from tunelight.record.names import RECORD_FILE, why
from tunelight.record.record import check_format, parse, read_lines
from tunelight.record.remote import refresh
from tunelight.record.state import SweepState, apply


class RecordFollower:
    """Keeps the live view of a sweep that another process runs; reads only the new lines.

    Raises: StorageError where ``folder`` is no sweep, or its record cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = stores.working(folder).absolute()
        self.state = SweepState()
        self._path = self.folder / RECORD_FILE
        self._read = 0
        self._file: int | None = None
        if not self._path.exists():
            read_lines(self.folder)  # brings it here from a store, or says what is wrong

    def look(self) -> list[dict[str, Any]]:
        """Apply the lines that were written since the last call, and return them. Raises: StorageError."""
        try:
            with suppress(OSError):  # a store that does not answer now may do so at the next call
                refresh(self._path)
            with self._path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if found.st_size < self._read or self._file not in (None, found.st_ino):
                    self._read, self.state = 0, SweepState()  # it was repaired, or replaced by another sweep's
                self._file = found.st_ino
                stream.seek(self._read)
                chunks = stream.read().split(b"\n")
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read any more: {why(error)}.") from error
        lines = []
        for chunk in chunks[:-1]:  # behind the last line break: not written yet
            lines.append(self._take(chunk))
            self._read += len(chunk) + 1
        return lines

    def _take(self, chunk: bytes) -> dict[str, Any]:
        """Apply and return one line. Raises: StorageError if it is corrupt, or a later tunelight wrote it."""
        line = parse(chunk)
        try:
            if line is None:
                raise ValueError("its checksum does not fit")
            check_format(line, self._path)
            apply(self.state, line)
            return line
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{self._path} is damaged {self._read} bytes in ({error}). If its driver runs no more, "
                "tunelight.run(..., resume='force') repairs it."
            ) from error
