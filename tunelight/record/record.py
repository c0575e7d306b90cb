"""The record of a sweep on disk: lines with checksums, appended by its writer and replayed by its readers."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from tunelight.errors import StorageError
from tunelight.record.folder import encode, write_text
from tunelight.record.lease import RECORD_FILE, record_of, why
from tunelight.record.lines import Source, loaded, opened, parse, sealed
from tunelight.record.outcomes import TERMINAL
from tunelight.record.remote import refresh, written_at_last
from tunelight.record.snapshot import keep, restored
from tunelight.record.state import SweepState, apply
from tunelight.stores import shown, sync_file

FORMAT: Final = 1
"""The version of the record and of its folder's layout. Records with a later one are refused."""
_SYNC_S: Final = 1.0
_LONG: Final = 1 << 18
"""Bytes from which on reading a record takes longer than it takes to start a process that does."""
_AGAIN: Final = 64
"""A snapshot is written again when the record has grown by one part in so many."""
_HOW_TO_FORCE: Final = (
    "Restore the file from a copy, or go on without what is lost: tunelight.run(..., resume='force') keeps the damaged "
    "file beside the new one, and all lines that are whole."
)

_SPARED: Final = re.compile(
    rb'{"kind":"(?:gang"|checkpoint"|training"|'
    rb'report","time":[^",]+,"trial":"(\w+)","training_iteration":(\d+),"epoch":(null)?)'
)
Spare = Callable[[str, int, bool], bool]
"""Tells of a report whether it can be left out: by its trial, its number, and whether it has an epoch."""

_log = logging.getLogger("tunelight")


class Record:
    """The writer of ``record.jsonl``. It hands lines to the operating system at once, and syncs ends and commands.

    A line that cannot be written (disk full) is kept and retried with the next one; the first failure is logged.
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self.path = record_of(folder)
        self.failed: OSError | None = None
        """The first write error, if there was one."""
        self.state = SweepState()
        """What the record says, with :meth:`open`."""
        self.source: Source | None = None
        """Where the reports of ``state`` stay, and those that are appended; None without :meth:`open`."""
        self._clock = clock
        self._synced = -math.inf
        self._file: int | None = None
        self._size, self._alone = 0, True  # whether no other driver has written into it
        self._pending = b""

    @classmethod
    def open(cls, folder: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> Record:
        """Open the record of ``folder`` to append to it; a torn last line is cut off first.

        Raises: StorageError when it cannot be written, or holds a corrupt line.
        """
        record = cls(folder, clock)
        try:
            with record.path.open("a+b") as stream:
                record.source = Source(stream, growing=True)
                record.state, record._size, _ = _replayed(stream, record.source)
                record.source.written = record._size
                stream.truncate(record._size)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{record.path} cannot be written: {why(error)}. Choose another storage=.") from error
        return record

    def append(self, kind: str, **fields: Any) -> None:
        """Append one line, and apply it as a reader gets it."""
        now = self._clock()
        body = encode({"kind": kind, "time": now, **fields}).encode("ascii")
        line = sealed(body)
        self._pending += line
        self._write()
        if self.source is not None:
            self.source.place = self._size + len(self._pending) - len(line)
            if not self._pending:
                self.source.written = self._size
        if kind in ("end", "command") or (fields.get("state") in TERMINAL and now - self._synced >= _SYNC_S):
            self._sync()
            self._synced = now
        if self.source is not None:
            apply(self.state, loaded(body), self.source)

    def _write(self) -> bool:
        """Write what is pending, a line with one system call; return whether nothing is left."""
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            while self._pending:
                count = os.write(self._file, self._pending)
                self._pending, known = self._pending[count:], self._size + count
                self._size = os.lseek(self._file, 0, os.SEEK_CUR)
                self._alone &= self._size == known
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

        Where there is no room, it waits for some. A long record has a snapshot for its readers then.
        """
        written_at_last(self._write, self.path)
        self._sync()
        whole = self._alone and not self._pending and self._file is not None
        if self.source is not None and whole and self._size >= _LONG:
            keep(self.state, self.source, self._size)
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
        if self._pending:
            _log.error("%s lacks its last %d bytes: they could not be written.", self.path, len(self._pending))


def _scan(stream: BinaryIO, *, strict: bool = False, spare: Spare | None = None) -> Iterator[tuple[Any, int, int]]:
    """Yield the lines of a record from where its file is read, without an incomplete last one, and their two ends.

    ``spare``: see :func:`replayed`. Raises: StorageError naming the first corrupt line, unless that is the last, and
    this not ``strict``; OSError.
    """
    begin, spared = stream.tell(), dict[str, tuple[bytes, int, int]]()
    for chunk in stream:
        if chunk[-1:] != b"\n":  # not written yet
            break
        end = begin + len(chunk)
        if spare is not None and (known := _SPARED.match(chunk)) is not None:
            trial = None if known[1] is None else known[1].decode()
            if (trial is None or spare(trial, int(known[2]), known[3] is None)) and opened(chunk[:-1]):
                if trial is not None:
                    spared[trial] = chunk[:-1], begin, end
                begin = end
                continue
        if (line := parse(chunk[:-1])) is None:
            if not strict and not stream.read(1):
                break
            raise StorageError(f"{_place(stream, begin)}: corrupt (its checksum does not fit). {_HOW_TO_FORCE}")
        if "sweep" in line:
            check_format(line, stream.name)
        for each in list(spared) if line.get("trial") is None else [str(line["trial"])]:
            if (last := spared.pop(each, None)) is not None and line.get("kind") != "report":
                yield parse(last[0]), *last[1:]
        yield line, begin, end
        begin = end
    for last in spared.values():
        yield parse(last[0]), *last[1:]


def _place(stream: BinaryIO, begin: int) -> str:
    """Name the line that begins at a byte of a record."""
    stream.seek(0)
    number = 1 + stream.read(begin).count(b"\n")
    return f"{stream.name}, line {number}"


def check_format(line: Mapping[str, Any], path: str) -> None:
    """Raise StorageError where a later tunelight wrote the record."""
    sweep = line.get("sweep")
    version = sweep.get("format", FORMAT) if isinstance(sweep, Mapping) else FORMAT
    if version != FORMAT:
        raise StorageError(
            f"{path} has the format {version!r}, and this tunelight reads format {FORMAT}: a later version wrote "
            "it. Upgrade tunelight to read it or to go on with the sweep."
        )


@contextmanager
def _reading(folder: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open the record of a sweep. Raises: StorageError where there is none that can be read."""
    try:
        path = record_of(folder)
        refresh(path)
        with path.open("rb") as stream:
            yield stream
    except StorageError:  # which says what is wrong with it
        raise
    except OSError as error:
        names = ", ".join(sorted(found.parent.name for found in Path(folder).glob(f"*/{RECORD_FILE}")))
        raise StorageError(
            f"{shown(folder)} holds no sweep that can be read ({RECORD_FILE}: {why(error)}). Give the folder of "
            f"one sweep, storage/name.{names and f' Sweeps in it: {names}.'}"
        ) from error


def read_record(folder: str | os.PathLike[str], *, lazy: bool = False) -> SweepState:
    """Replay the record of a sweep, without an incomplete last line (the driver died while writing it).

    ``lazy``, of a long record: the reports stay in its file until a history is asked for them, and what else it says is
    kept in a snapshot beside it, from which the next reader begins.

    Raises: StorageError when there is no record, a line before the last is corrupt (naming it), or a later
        version of tunelight wrote it.
    """
    with _reading(folder) as stream:
        source = Source(stream) if lazy and os.fstat(stream.fileno()).st_size >= _LONG else None
        state, end, begin = _replayed(stream, source)
        if source is not None and end - begin > max(_LONG, end // _AGAIN):
            keep(state, source, end)
    return state


def _replayed(stream: BinaryIO, source: Source | None) -> tuple[SweepState, int, int]:
    """Return what a record says up to its last whole line, where that ends, and up to where a snapshot had it."""
    state, begin = (source and restored(source)) or (SweepState(), 0)
    stream.seek(begin)
    return state, max((end for _, end in replay(state, stream, source)), default=begin), begin


def replayed(folder: str | os.PathLike[str], spare: Spare | None = None) -> Iterator[tuple[dict[str, Any], SweepState]]:
    """Yield the lines of a sweep's record, each with what is known after it. Raises: StorageError.

    With ``spare``, what schedulers and searchers need not hear of is left out, which takes a tenth of the time: gangs,
    checkpoints, and the reports that it names, but for a trial's last one before another kind of line, or the end.
    """
    with _reading(folder) as stream:
        state = SweepState()
        for line, _ in replay(state, stream, Source(stream, growing=True), spare=spare):
            yield line, state


def replay(
    state: SweepState, stream: BinaryIO, source: Source | None = None, **how: Any
) -> Iterator[tuple[dict[str, Any], int]]:
    """Apply the lines of a record from where its file is read, and yield each and its end; reports stay in a source.

    ``how``: see :func:`_scan`. Raises: StorageError, see :func:`read_record`; OSError.
    """
    for line, begin, end in _scan(stream, **how):
        try:
            if source is not None:
                source.place = begin
            apply(state, line, source)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            where = _place(stream, begin)
            raise StorageError(f"{where}: it does not fit the lines before it ({error!r}). {_HOW_TO_FORCE}") from error
        yield line, end


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
    names = (path.with_name(f"{path.name}.bad-{number}") for number in itertools.count(1))
    bad = next(name for name in names if not name.exists())
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
