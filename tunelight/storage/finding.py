"""Find sweeps on disk: by path, by name, or all of those in a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunelight.errors import StorageError, guess
from tunelight.storage.files import RECORD_FILE, read_sweep_file

DEFAULT_STORAGE: Final = "tunelight_runs"
"""Where sweeps lie unless ``storage=`` says otherwise."""


@dataclass(frozen=True)
class Found:
    """A sweep's folder, and when its record was last written to (seconds since the epoch)."""

    folder: Path
    written: float


def list_sweeps(storage: str | os.PathLike[str] = DEFAULT_STORAGE) -> list[Found]:
    """Return the sweeps in a storage folder, the last written one first; none where the folder is missing."""
    found = []
    for record in _expanded(storage).absolute().glob(f"*/{RECORD_FILE}"):
        try:
            found.append(Found(record.parent, record.stat().st_mtime))
        except OSError:  # it was deleted a moment ago
            continue
    return sorted(found, key=lambda one: -one.written)


def find_sweep(given: str | os.PathLike[str], storage: str | os.PathLike[str] = DEFAULT_STORAGE) -> Path:
    """Return the folder of a sweep by its path, its name in ``storage``, or as "last".

    The last is the last written one there, but for those that reproduce a trial of another: they are asked for by name.

    Raises: StorageError for one that there is not, with those that there are.
    """
    path, storage = _expanded(given), _expanded(storage)
    for folder in (path, storage / path):
        if os.path.isfile(folder / RECORD_FILE):  # noqa: PTH113 - Path's own raises where a name is too long
            return folder.absolute()
    known = list_sweeps(storage)
    if str(given) == "last" and known:
        return next((one.folder for one in known if not _reproduces(one.folder)), known[0].folder)
    inside = [one.folder.name for one in list_sweeps(path)] if is_folder(path) else []
    if inside:
        raise StorageError(
            f"{path} is no sweep, but holds some: {_some(inside)}. Give one of them: {path / inside[0]}."
        )
    names = [one.folder.name for one in known]
    if not names:
        raise StorageError(
            f"There is no sweep {str(given)!r}, and none at all in {Path(storage)}. Give the path of a sweep's folder "
            "(storage/name), or the folder that sweeps lie in as --storage."
        )
    raise StorageError(
        f"There is no sweep {str(given)!r}: neither that folder nor one of that name in {Path(storage)}."
        f"{guess(given, names)} There are: {_some(names)}; or say 'last'."
    )


def _reproduces(folder: Path) -> bool:
    try:
        return "reproduces" in read_sweep_file(folder)
    except StorageError:  # whoever opens it is told
        return False


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path leads to a folder."""
    return os.path.isdir(_expanded(path))  # noqa: PTH112 - as in find_sweep


def _expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ replaced; of a user that there is not, it is a name like any other."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's own raises there


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
