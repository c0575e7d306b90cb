"""The record of a sweep on disk: lines with checksums, appended by its writer and replayed by its readers.

A line is JSON with the keys ``kind``, ``time`` (seconds since the epoch), what the kind holds, and last
``crc``: the CRC-32 (8 hex digits) of the line without it. NaN, Infinity and -Infinity are written as Python's
json writes them and survive the round trip (strict JSON readers of other languages refuse them).
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tunelight.errors import StorageError
from tunelight.record.folder import encode, write_text
from tunelight.record.lease import RECORD_FILE, record_of, why
from tunelight.record.outcomes import TERMINAL
from tunelight.record.remote import refresh, written_at_last
from tunelight.record.state import SweepState, apply
from tunelight.stores import shown, sync_file
from tunelight.stores.masking import printable

FORMAT: Final = 1
"""The version of the record and of its folder's layout. Records with a later one are refused."""
_SYNC_S: Final = 1.0
_ODD: Final = re.compile(rb"\\u00[0-9]|\\[bfr]|\x7f|\xc2[\x80-\x9f]")
"""What a line of JSON holds if there may be control characters in it."""

_HOW_TO_FORCE: Final = (
    "tunelight.run(..., resume='force') keeps the damaged file beside the new one, and all lines that are whole."
)

_log = logging.getLogger("tunelight")


class Record:
    """The writer of ``record.jsonl``. It hands lines to the operating system at once, and syncs ends and commands.

    A line that cannot be written (disk full) is kept and retried with the next one; the first failure is logged.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self.path = record_of(folder)
        self.failed: OSError | None = None
        """The first write error, if there was one."""
        self._clock = clock
        self._synced = -math.inf
        self._file: int | None = None
        self._pending = b""

    @classmethod
    def open(cls, folder: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> Record:
        """Open the record of ``folder`` to append to it; a torn last line is cut off first.

        Raises: StorageError when it cannot be written, or holds a corrupt line.
        """
        record = cls(folder, clock)
        try:
            whole = _scan(record.path)[1] if record.path.exists() else 0
            with record.path.open("ab") as stream:
                stream.truncate(whole)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{record.path} cannot be written: {why(error)}. Choose another storage=.") from error
        return record

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append one line; return it as a reader gets it."""
        now = self._clock()
        body = encode({"kind": kind, "time": now, **fields})
        text = f'{body[:-1]},"crc":"{zlib.crc32(body.encode("ascii")):08x}"}}'
        self._pending += text.encode("ascii") + b"\n"
        self._write()
        if kind in ("end", "command") or (fields.get("state") in TERMINAL and now - self._synced >= _SYNC_S):
            self._sync()
            self._synced = now
        return _loaded(body.encode("ascii"))

    def _write(self) -> bool:
        """Write what is pending, a line with one system call; return whether nothing is left."""
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            while self._pending:
                self._pending = self._pending[os.write(self._file, self._pending) :]
        except OSError as error:
            self.complain(error)
        return not self._pending

    def _sync(self) -> None:
        if self._file is not None:
            try:
                sync_file(self._file)
            except OSError as error:
                self.complain(error)

    def complain(self, error: OSError) -> None:
        """Log, once, that the sweep's folder cannot be written."""
        if self.failed is None:
            self.failed = error
            _log.warning(
                "%s cannot be written: %s. The sweep goes on; what happened is kept in memory and written as "
                "soon as that works again: make room.",
                self.path.parent,
                why(error),
            )

    def close(self) -> None:
        """Write what is pending, sync it to disk, and close the file. May be called more than once.

        Where there is no room, it waits for some.
        """
        written_at_last(self._write, self.path)
        self._sync()
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
        if self._pending:
            _log.error("%s lacks its last %d bytes: they could not be written.", self.path, len(self._pending))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_pending": b""}


def parse(chunk: bytes) -> dict[str, Any] | None:
    """Return one line of a record without its checksum; None if the checksum is wrong, or it is no JSON."""
    head, found, tail = chunk.rpartition(b',"crc":"')
    body = head + b"}"
    if not found or tail != b'%08x"}' % zlib.crc32(body):
        return None
    try:
        return _loaded(body)
    except (ValueError, RecursionError):
        return None


def _loaded(body: bytes) -> dict[str, Any]:
    """Return a line of JSON, whose control characters are written out, but for those in values of configurations.

    Raises: ValueError, RecursionError.
    """
    line: dict[str, Any] = json.loads(body.decode("utf-8"))  # else it would look for the encoding of each line
    return {key: _printable(part, exact=key == "config") for key, part in line.items()} if _ODD.search(body) else line


def _printable(value: Any, *, exact: bool) -> Any:
    if isinstance(value, str):
        return value if exact else printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(part, exact=exact or key == "config") for key, part in value.items()}
    return [_printable(part, exact=exact) for part in value] if isinstance(value, list) else value


def _scan(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a record and their size in bytes, without an incomplete last line.

    Raises: StorageError naming the first corrupt line that is not the last; OSError.
    """
    chunks = path.read_bytes().split(b"\n")
    lines: list[dict[str, Any]] = []
    size = 0
    for number, chunk in enumerate(chunks[:-1], start=1):
        line = parse(chunk)
        if line is None:
            if number == len(chunks) - 1 and not chunks[-1]:
                break
            raise StorageError(
                f"{path}, line {number}: corrupt (its checksum does not fit). Restore the file from a copy, or "
                f"go on without what is lost: {_HOW_TO_FORCE}"
            )
        check_format(line, path)
        lines.append(line)
        size += len(chunk) + 1
    return lines, size


def check_format(line: Mapping[str, Any], path: Path) -> None:
    """Raise StorageError where a later tunelight wrote the record."""
    sweep = line.get("sweep")
    version = sweep.get("format", FORMAT) if isinstance(sweep, Mapping) else FORMAT
    if version != FORMAT:
        raise StorageError(
            f"{path} has the format {version!r}, and this tunelight reads format {FORMAT}: a later version wrote "
            "it. Upgrade tunelight to read it or to go on with the sweep."
        )


def read_lines(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a sweep's record, without an incomplete last one (the driver died while writing it).

    Raises: StorageError when there is no record, a line before the last is corrupt (naming it), or a later
        version of tunelight wrote it.
    """
    try:
        path = record_of(folder)
        refresh(path)
        return _scan(path)[0]
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{shown(folder)} holds no sweep that can be read ({RECORD_FILE}: {why(error)}). Give the folder of "
            f"one sweep, storage/name.{_sweeps_inside(Path(folder))}"
        ) from error


def read_record(folder: str | os.PathLike[str]) -> SweepState:
    """Replay the record of a sweep. Raises: StorageError, see :func:`read_lines`."""
    state = SweepState()
    for number, line in enumerate(read_lines(folder), start=1):
        try:
            apply(state, line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{record_of(folder)}, line {number}: it does not fit the lines before it ({error!r}). Restore the "
                f"file from a copy, or go on without what is lost: {_HOW_TO_FORCE}"
            ) from error
    return state


def read_trial(folder: str | os.PathLike[str], trial: str) -> SweepState:
    """Replay what the record of a sweep says of one trial, and of the sweep itself; other trials are left out.

    It takes the memory of that trial alone. Raises: StorageError, see :func:`read_lines`.
    """
    path, state = Path(folder, RECORD_FILE), SweepState()
    own = b'"trial":' + json.dumps(trial).encode("ascii")
    try:
        path = record_of(folder)
        refresh(path)
        with path.open("rb") as stream:
            for chunk in stream:
                if own not in chunk and not chunk.startswith((b'{"kind":"sweep"', b'{"kind":"end"')):
                    continue
                line = parse(chunk.rstrip(b"\n"))
                if line is None or line.get("trial", trial) != trial:  # the last line, torn; or a value that looks so
                    continue
                check_format(line, path)
                apply(state, line)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        said = why(error) if isinstance(error, OSError) else repr(error)
        raise StorageError(f"{path} cannot be read: {said}. If it is damaged, {_HOW_TO_FORCE}") from error
    return state


def _sweeps_inside(folder: Path) -> str:
    names = sorted(found.parent.name for found in folder.glob(f"*/{RECORD_FILE}"))
    return f" Sweeps in it: {', '.join(names)}." if names else ""


# --- Repair: keep all lines that are intact and fit each other -------------------------------------


def repair(folder: str | os.PathLike[str]) -> str | None:
    """Keep the intact lines of a sweep's record; return what was done (None: nothing is damaged).

    The damaged file stays beside the new one, as ``record.jsonl.bad-1`` (2, 3, ...). What needs a lost line
    (the reports of a trial whose creation is lost) is left out as well. Raises: StorageError.
    """
    path = record_of(folder)
    try:
        chunks = path.read_bytes().split(b"\n")[:-1]  # what follows the last line break is incomplete
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {why(error)}.") from error
    whole, lost = _sift(chunks)
    if not lost or lost == [len(chunks)]:
        return None
    bad = _free(path)
    os.link(path, bad)
    write_text(path, "".join(chunk.decode("ascii") + "\n" for chunk in whole))
    shown = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
    return f"{len(lost)} of {len(chunks)} lines of {path.name} are damaged and left out ({shown}): see {bad.name}"


def _sift(chunks: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Return the intact lines that fit those before them, and the numbers of the others."""
    state, whole, lost = SweepState(), [], []
    for number, chunk in enumerate(chunks, start=1):
        line: dict[str, Any] | None = parse(chunk)
        try:
            if line is None:
                raise ValueError
            apply(state, line)
        except (KeyError, TypeError, ValueError, AttributeError):
            lost.append(number)
        else:
            whole.append(chunk)
    return whole, lost


def _free(path: Path) -> Path:
    number = 1
    while (bad := path.with_name(f"{path.name}.bad-{number}")).exists():
        number += 1
    return bad
