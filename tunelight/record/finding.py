"""Find sweeps on disk: by path, by name, or all in a folder."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunelight.errors import StorageError, first_of, guess
from tunelight.record.folder import read_sweep_file
from tunelight.record.lease import RECORD_FILE, record_of
from tunelight.record.remote import has_record, reaching, refresh
from tunelight.stores import shown, store_of, working

DEFAULT_STORAGE: Final = "tunelight_runs"
"""The folder of sweeps unless ``storage=`` names another."""


@dataclass(frozen=True)
class Found:
    """A sweep's folder, and when its record was last written to (seconds since the epoch)."""

    folder: Path
    written: float


def list_sweeps(storage: str | os.PathLike[str] = DEFAULT_STORAGE) -> list[Found]:
    """Return the sweeps in a storage folder, the last written first; none if there is no such folder."""
    found = []
    folder = working(storage).absolute()
    with reaching(folder):
        pattern, store = f"*/{RECORD_FILE}", store_of(folder)
        records = sorted(folder.glob(pattern)) if store is None else store.listed(folder, pattern)
    for record in records:
        with contextlib.suppress(OSError):  # it was deleted a moment ago
            path = record_of(record.parent)
            refresh(path)
            found.append(Found(record.parent, path.stat().st_mtime))
    return sorted(found, key=lambda one: -one.written)


def find_sweep(given: str | os.PathLike[str], storage: str | os.PathLike[str] = DEFAULT_STORAGE) -> Path:
    """Return the folder of a sweep, given its path, its name in ``storage``, or "last".

    "last" is the last written sweep there that does not reproduce a trial of another.

    Raises: StorageError if there is no such sweep; the message lists those that there are.
    """
    path, storage = working(given), working(storage)
    for folder in (path, storage / path):
        with reaching(folder):
            if has_record(folder):
                return folder.absolute()
    known = list_sweeps(storage)
    if str(given) == "last" and known:
        return next((one.folder for one in known if not _reproduces(one.folder)), known[0].folder)
    inside = [one.folder.name for one in list_sweeps(path)] if is_folder(path) else []
    if inside:
        raise StorageError(
            f"{path} is no sweep, but holds some: {first_of(inside, 8)}. Give one of them: {path / inside[0]}."
        )
    names = [one.folder.name for one in known]
    if not names:
        raise StorageError(
            f"There is no sweep {str(given)!r}, and none at all in {shown(storage)}. Give the path of a sweep's "
            "folder (storage/name), or the folder that sweeps lie in as --storage."
        )
    raise StorageError(
        f"There is no sweep {str(given)!r}: neither that folder nor one of that name in {shown(storage)}."
        f"{guess(given, names)} There are: {first_of(names, 8)}; or say 'last'."
    )


def _reproduces(folder: Path) -> bool:
    try:
        return "reproduces" in read_sweep_file(folder)
    except StorageError:  # whoever opens it is told
        return False


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path or URL is that of a folder."""
    folder = working(path)
    store = store_of(folder)
    return os.path.isdir(folder) if store is None else store.has_any(folder)  # noqa: PTH112 - Path's own may raise
