"""A file of JSON lines in a sweep's folder to which any process may append, also while the sweep runs."""

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
from tunelight.stores import alone, shown, store_of


class SharedLines:
    """Appends lines under a lock (``flock``), and reads those of others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def append(self, line: Mapping[str, Any], lost: str) -> None:
        """Append a line. A torn last line, whose writer was killed, stays one of its own.

        A store cannot append: there the file is read and written again. Of two machines that do so at the same moment,
        one loses its line. Raises: StorageError, in which ``lost`` says what did not happen.
        """
        try:
            with alone(self.path) if store_of(self.path) else contextlib.nullcontext():
                self._append(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        except OSError as error:
            raise StorageError(
                f"{shown(self.path)} cannot be written: {why(error)}. {lost}; make it writable, or make room."
            ) from error

    def _append(self, line: bytes) -> None:
        store = store_of(self.path)
        if store is not None and not store.update(self.path):
            self.path.unlink(missing_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: a line is written by one call
                fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if os.pread(file, 1, max(0, size - 1)) not in (b"", b"\n"):
                line = b"\n" + line
            if store is not None:
                store.write(self.path, os.pread(file, size, 0) + line)
            if os.write(file, line) < len(line):
                os.ftruncate(file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(file)

    def news(self) -> list[dict[str, Any]]:
        """Return the lines since the last call, except those that are no JSON objects.

        What other machines wrote into a store is downloaded by :func:`tunelight.record.remote.refresh`. A line without
        its line break is not written yet. Raises: OSError.
        """
        try:
            if self.path.stat().st_size <= self._read:
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
