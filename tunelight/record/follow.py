"""Follow a record that another process writes."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

from tunelight import stores
from tunelight.errors import StorageError
from tunelight.record.names import RECORD_FILE, why
from tunelight.record.record import check_format, parse, read_lines
from tunelight.record.remote import refresh
from tunelight.record.state import SweepState, TrialState, apply


class RecordFollower:
    """Keeps the live view of a sweep that another process runs; reads only the new lines. Several threads may look.

    Args:
        folder: the sweep's.
        brief: keep only the best and the last report of each trial in its ``history``, so that memory grows with the
            number of trials and not with that of their reports.

    Raises: StorageError where ``folder`` is no sweep, or its record cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], *, brief: bool = False) -> None:
        self.folder = stores.working(folder).absolute()
        self.state = SweepState()
        self.read = 0
        """Bytes of the record that were read."""
        self.size = 0
        """Bytes that the record had at the last look."""
        self._brief = brief
        self._path = self.folder / RECORD_FILE
        self._file: int | None = None
        self._lock = threading.Lock()
        if not self._path.exists():
            read_lines(self.folder)  # brings it here from a store, or says what is wrong

    def look(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Apply the lines that were written since the last call, and return them. Raises: StorageError.

        Args:
            limit: bytes to read at most, and at least one line; None reads all there are.
        """
        with self._lock:
            lines = []
            for chunk in self._chunks(limit):
                lines.append(self._take(chunk))
                self.read += len(chunk) + 1
            return lines

    def _chunks(self, limit: int | None) -> list[bytes]:
        """Return the whole lines that follow what was read."""
        try:
            with suppress(OSError):  # a store that does not answer now may do so at the next call
                refresh(self._path)
            with self._path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if found.st_size < self.read or self._file not in (None, found.st_ino):
                    self.read, self.state = 0, SweepState()  # it was repaired, or replaced by another sweep's
                self._file, self.size = found.st_ino, found.st_size
                stream.seek(self.read)
                text = stream.read(-1 if limit is None else limit)
                if b"\n" not in text:
                    text += stream.readline()  # a line that is longer than the limit
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read any more: {why(error)}.") from error
        return text.split(b"\n")[:-1]  # behind the last line break: not written yet

    def _take(self, chunk: bytes) -> dict[str, Any]:
        """Apply and return one line. Raises: StorageError if it is corrupt, or a later tunelight wrote it."""
        line = parse(chunk)
        try:
            if line is None:
                raise ValueError("its checksum does not fit")
            check_format(line, self._path)
            apply(self.state, line)
            if self._brief and line["kind"] == "report":
                _shorten(self.state.trials[line["trial"]])
            return line
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{self._path} is damaged {self.read} bytes in ({error}). If its driver runs no more, "
                "tunelight.run(..., resume='force') repairs it."
            ) from error


def _shorten(trial: TrialState) -> None:
    """Leave only the best and the last report in a trial's history."""
    best, last = None if trial.best is None else trial.history[trial.best], trial.history[-1]
    trial.history = [last] if best is None or best is last else [best, last]
    trial.best = None if best is None else 0
