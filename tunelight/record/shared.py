"""A file of JSON lines in a sweep's folder to which any process may append, also while the sweep runs.

Object stores cannot append. There each line is an object, numbered in the order in which the store took them:
``commands/1.json``, ``commands/2.json``, ... for ``commands.jsonl``. A machine's file holds those that it has read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunelight.errors import StorageError
from tunelight.record.names import why
from tunelight.stores import Store, alone, shown, store_of


class SharedLines:
    """Appends lines, in a folder under a lock (``flock``), and reads those of others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def append(self, line: Mapping[str, Any], lost: str) -> None:
        """Append a line. A torn last line, whose writer was killed, stays one of its own.

        Raises: StorageError, in which ``lost`` says what did not happen.
        """
        text = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            if (store := store_of(self.path)) is None:
                self._append(text)
                return
            number = len(self._numbers(store)) + 1
            while not store.create(self._object(number), text):
                number += 1
        except OSError as error:
            raise StorageError(
                f"{shown(self.path)} cannot be written: {why(error)}. {lost}; make it writable, or make room."
            ) from error

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: a line is written by one call
                fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if os.pread(file, 1, max(0, size - 1)) not in (b"", b"\n"):
                line = b"\n" + line
            if os.write(file, line) < len(line):
                os.ftruncate(file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(file)

    def bring(self) -> None:
        """Download the lines that a store has, and this machine has not. Raises: OSError."""
        if (store := store_of(self.path)) is None:
            return
        last = max(self._numbers(store), default=0)
        if not last and not self.path.exists():
            return
        with alone(self.path), self.path.open("ab+") as stream:
            stream.seek(0)
            known = stream.readlines()
            torn = bool(known) and not known[-1].endswith(b"\n")
            if torn or len(known) > last or (0 < len(known) < last and known[-1] != self._line(store, len(known))):
                known = []  # of a full disk, or of a sweep that was deleted
                stream.truncate(0)
            for number in range(len(known) + 1, last + 1):
                stream.write(self._line(store, number))

    def _line(self, store: Store, number: int) -> bytes:
        try:
            return store.read(self._object(number))
        except FileNotFoundError:  # somebody has deleted it
            return b"\n"

    def _numbers(self, store: Store) -> list[int]:
        names = store.listed(self.path.parent, f"{self.path.stem}/*.json")
        return [int(path.stem) for path in names if path.stem.isdigit()]

    def _object(self, number: int) -> Path:
        return self.path.with_suffix("") / f"{number}.json"

    def news(self) -> list[dict[str, Any]]:
        """Return the lines since the last call, except those that are no JSON objects.

        What other machines wrote into a store is downloaded by :func:`tunelight.record.remote.refresh`. A line without
        its line break is not written yet. Raises: OSError.
        """
        try:
            size = self.path.stat().st_size
            if size < self._read:  # it was written anew
                self._read = 0
            if size == self._read:
                return []
            with self.path.open("rb") as stream:
                stream.seek(self._read)
                chunks = stream.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        self._read += sum(len(chunk) + 1 for chunk in chunks)
        lines = []
        for chunk in chunks:
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(chunk)
                if isinstance(line, dict) and isinstance(line.get("trial"), str | None):
                    lines.append(line)
        return lines
