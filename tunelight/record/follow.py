"""Follow a record that another process writes."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any, Final

from tunelight.errors import StorageError
from tunelight.record.lease import RECORD_FILE, record_of, why
from tunelight.record.record import check_format, parse, read_lines
from tunelight.record.remote import refresh
from tunelight.record.state import SweepState, TrialState, apply
from tunelight.stores import working

_BEGINNING: Final = 256
"""Bytes by which a record is known again: its first line holds when it was begun."""
_KEPT: Final = 8
_MOST_NOTES: Final = 100


class RecordFollower:
    """Keeps the live view of a sweep that another process runs; reads only the new lines. Several threads may look.

    Args:
        folder: the sweep's.
        brief: keep only the best and the last report of each trial in its ``history``, and the last few of all else
            that comes again and again, so that memory grows with the number of trials and not with what they do.

    Raises: StorageError where ``folder`` is no sweep, or its record cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], *, brief: bool = False) -> None:
        self.folder = working(folder).absolute()
        self.state = SweepState()
        self.read = 0
        """Bytes of the record that were read."""
        self.size = 0
        """Bytes that the record had at the last look."""
        self.whole = False
        """Whether the last look came to its end. A last line that is not written yet does not count."""
        self._brief = brief
        self._path = self.folder / RECORD_FILE
        with suppress(OSError):
            self._path = record_of(self.folder)
        self._file: int | None = None
        self._beginning = b""
        self._lock = threading.Lock()
        if not self._path.exists():
            read_lines(self.folder)  # brings it here from a store, or says what is wrong

    def look(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Apply the lines that were written since the last call, and return them.

        Raises: StorageError; for a damaged line only after a call has returned the lines before it.

        Args:
            limit: bytes to read at most, and at least one line; None reads all there are.
        """
        with self._lock:
            lines: list[dict[str, Any]] = []
            for chunk in self._chunks(limit):
                try:
                    lines.append(self._take(chunk))
                except StorageError:
                    if not lines:
                        raise
                    break
                self.read += len(chunk) + 1
            return lines

    def _chunks(self, limit: int | None) -> list[bytes]:
        """Return the whole lines that follow what was read."""
        try:
            with suppress(OSError):  # a store that does not answer now may do so at the next call
                self._path = record_of(self.folder)
                refresh(self._path)
            with self._path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                beginning = stream.read(_BEGINNING)
                known = self._file in (None, found.st_ino) and beginning.startswith(self._beginning)
                if not known or found.st_size < self.read:
                    self.read, self.state = 0, SweepState()  # it was repaired, or replaced by another sweep's
                self._file, self.size, self._beginning = found.st_ino, found.st_size, beginning
                stream.seek(self.read)
                text = stream.read(-1 if limit is None else limit)
                if b"\n" not in text:
                    text += stream.readline()  # a line that is longer than the limit
                self.whole = stream.tell() >= found.st_size
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
            if self._brief:
                self._shorten(line["kind"], line.get("trial"))
            return line
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{self._path} is damaged {self.read} bytes in ({error}). If its driver runs no more, "
                "tunelight.run(..., resume='force') repairs it."
            ) from error

    def _shorten(self, kind: str, trial_id: Any) -> None:
        """Leave only what a brief view needs of what the last line has added to."""
        if kind == "report":
            _shorten_history(self.state.trials[trial_id])
            return
        del self.state.notes[:-_MOST_NOTES]
        while len(self.state.answers) > _MOST_NOTES:
            del self.state.answers[next(iter(self.state.answers))]
        trial = self.state.trials.get(trial_id) if isinstance(trial_id, str) else None
        if trial is None:
            return
        several: tuple[list[Any], ...] = (trial.checkpoints, trial.moves, trial.gangs, trial.changes, trial.notes)
        for entries in several:
            if len(entries) > _KEPT:
                del entries[:-_KEPT]


def _shorten_history(trial: TrialState) -> None:
    """Leave only the best and the last report."""
    if len(trial.history) > 1:
        best, last = None if trial.best is None else trial.history[trial.best], trial.history[-1]
        trial.history = [last] if best is None or best is last else [best, last]
        trial.best = None if best is None else 0
