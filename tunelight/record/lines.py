"""The lines of a record, and the reports in them.

A line is JSON with the keys ``kind``, ``time`` (seconds since the epoch), what the kind holds, and last
``crc``: the CRC-32 (8 hex digits) of the line without it. NaN, Infinity and -Infinity are written as Python's
json writes them and survive the round trip (strict JSON readers of other languages refuse them).
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from tunelight.errors import StorageError
from tunelight.stores.masking import printable

_ODD: Final = re.compile(rb"\\u00[0-9]|\\[bfr]|\x7f|\xc2[\x80-\x9f]")
"""What a line of JSON holds if there may be control characters in it."""
_CONFIGS: Final = ("config", "before")


def sealed(body: bytes) -> bytes:
    """Return the line of an object's JSON: with its checksum, and a line break."""
    return b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body))


def opened(chunk: bytes) -> bytes | None:
    """Return the JSON of one line of a record without its checksum; None if the checksum is wrong."""
    head, found, tail = chunk.rpartition(b',"crc":"')
    body = head + b"}"
    return body if found and tail == b'%08x"}' % zlib.crc32(body) else None


def parse(chunk: bytes) -> dict[str, Any] | None:
    """Return one line of a record without its checksum; None if the checksum is wrong, or it is no JSON."""
    try:
        return None if (body := opened(chunk)) is None else loaded(body)
    except (ValueError, RecursionError):
        return None


def loaded(body: bytes) -> dict[str, Any]:
    """Return a line of JSON, whose control characters are written out, but for those in values of configurations.

    Raises: ValueError, RecursionError.
    """
    line: dict[str, Any] = json.loads(body.decode("utf-8"))  # else it would look for the encoding of each line
    if (b"\\" in body or not body.isascii() or b"\x7f" in body) and _ODD.search(body):  # the search takes longer
        return {key: _printable(part, exact=key in _CONFIGS) for key, part in line.items()}
    return line


def _printable(value: Any, *, exact: bool) -> Any:
    if isinstance(value, str):
        return value if exact else printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(part, exact=exact or key in _CONFIGS) for key, part in value.items()}
    return [_printable(part, exact=exact) for part in value] if isinstance(value, list) else value


def report_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report in a line as users read it."""
    metrics = {sys.intern(name): value for name, value in line["metrics"].items()}  # each line has strings of its own
    return {**metrics, **{name: line[name] for name in ("epoch", "training_iteration", "timestamp")}}


class Source:
    """The file of a record, open for the histories whose reports are in it."""

    def __init__(self, stream: BinaryIO, *, growing: bool = False) -> None:
        self.path = Path(stream.name)
        self.place = 0
        """Where the line begins that is applied."""
        self.written = math.inf
        """Up to where its lines are in the file: those that its writer has beyond that may not be, or in part."""
        self._file = os.dup(stream.fileno())
        self.growing = growing
        """Whether its lines are applied as long as it is open: no report that is read of it is kept."""

    def __del__(self) -> None:
        os.close(self._file)

    def read(self, begin: int, end: int) -> bytes:
        """Return a part of the file. Raises: OSError."""
        return os.pread(self._file, end - begin, begin)

    def report(self, place: int) -> dict[str, Any]:
        """Return the report of the line that begins at a place. Raises: StorageError; OSError."""
        size = 4096  # bytes, in which most lines fit
        while b"\n" not in (chunk := self.read(place, place + size)) and len(chunk) == size:
            size *= 4
        line = parse(chunk.partition(b"\n")[0])
        if line is None:
            raise StorageError(f"{self.path} has changed since it was read. Load the sweep again.")
        return report_of(line)


class History(Sequence[dict[str, Any]]):  # noqa: PLW1641 - compared as a list is, which has no hash either
    """A trial's reports in order, which are read from the record when they are asked for.

    Of those whose lines are applied it keeps the last; a reader keeps what it asks for later, too.
    """

    __slots__ = ("_read", "places", "source")

    def __init__(self, source: Source, places: bytes = b"") -> None:
        self.places = array("Q", places)  # where its lines begin
        self.source = source
        self._read: dict[int, dict[str, Any]] = {}

    def append(self, report: dict[str, Any]) -> None:
        """Add the report of the line that is applied."""
        self.places.append(self.source.place)
        unwritten = {place: known for place, known in self._read.items() if place >= self.source.written}
        self._read = {**unwritten, self.source.place: report}

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        place = self.places[at]
        report = self._read.get(place)
        if report is None:
            report = self.source.report(place)
            if not self.source.growing:
                self._read[place] = report
        return report

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, History) else other)

    def __reduce__(self) -> Any:
        return list, (list(self),)
