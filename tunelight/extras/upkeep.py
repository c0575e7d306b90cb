"""Delete sweeps that nobody runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tunelight.errors import StorageError, first_of
from tunelight.record.folder import list_sweeps, read_sweep_file
from tunelight.record.lease import OWNERS, RECORD_FILE, SWEEP_FILE, leased, record_of, why
from tunelight.record.record import parse
from tunelight.record.remote import has_record
from tunelight.stores import delete_local, shown, store_of


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links are not followed. Raises: OSError."""
    if store := store_of(path):
        stat = store.stat(path)
        return 0 if stat is None else stat[0]
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size if os.path.lexists(path) else 0
    size = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # deleted a moment ago
                size += Path(folder, name).lstat().st_size
    return size


def check_deletable(folder: Path) -> None:
    """Raise StorageError unless ``folder`` is a sweep's own, and no link, and holds no other sweeps."""
    if folder.is_symlink():
        raise StorageError(f"{folder} is a link to {folder.resolve()}. Give that folder, and delete the link yourself.")
    if not _is_sweep(folder):
        raise StorageError(
            f"{shown(folder)} is no sweep of tunelight: its {RECORD_FILE} holds no line that tunelight wrote, "
            f"and there is no {SWEEP_FILE}. Nothing is deleted. If you know what it is, delete it yourself."
        )
    inside = [sweep.folder.name for sweep in list_sweeps(folder)]
    if inside:
        raise StorageError(
            f"{shown(folder)} holds other sweeps: {first_of(inside, 8)}. Nothing is deleted. Delete or move "
            "those first."
        )


def _is_sweep(folder: Path) -> bool:
    try:
        if has_record(folder):
            with record_of(folder).open("rb") as lines:
                if any(parse(line.rstrip(b"\n")) for line in lines):
                    return True
        return "space" in read_sweep_file(folder)
    except (OSError, ValueError):
        return False


def delete_sweep(folder: Path) -> None:
    """Delete a sweep's folder. Links in it are deleted, not what they point to.

    The record goes last, so that a sweep which could not be deleted whole is still one, and can be deleted again.

    Raises: StorageError where the sweep is running, is none, or cannot be deleted.
    """
    check_deletable(folder)
    with leased(folder, to="deleted"):
        last = (folder / OWNERS, record_of(folder), folder / RECORD_FILE)
        try:
            if store := store_of(folder):
                delete_local(folder / OWNERS)  # so that this lease is not written there again
                store.delete(folder)
            for path in (*(path for path in folder.iterdir() if path not in last), *dict.fromkeys(last)):
                delete_local(path)
            folder.rmdir()
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            where = error.filename if isinstance(error.filename, str) else shown(folder)
            raise StorageError(
                f"{shown(folder)} could not be deleted: {where}: {why(error)}. The rest of it is still there; make "
                "that writable, and try again."
            ) from error
