"""Repair a damaged record: keep all its lines that are intact and fit each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tunelight.errors import StorageError
from tunelight.record.folder import write_text
from tunelight.record.lease import record_of
from tunelight.record.names import why
from tunelight.record.record import parse
from tunelight.record.state import SweepState, apply


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
