"""Large files: pushed to a store when they are complete, and fetched once per node where they are opened."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tunelight.stores import objects
from tunelight.stores.objects import as_os_error, inner_names, inside, shown, stat, written_whole

FETCH_LIMIT_S: Final = 1800.0
"""How long a process waits while another one on its node fetches the same file."""
PUSH_LIMIT_S: Final = 120.0
"""How long the end of a trial waits for its ranks' uploads."""
_POLL_S: Final = 0.2


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


@as_os_error
def push(path: Path) -> None:
    """Upload a file, or all files of a folder, to the store of ``path``; does nothing without a store."""
    if not inside(path):
        return
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "nothing is there that could be brought to its store", str(path))
    system, name = objects.located(path)
    for file in _files(path):
        target = name if file == path else f"{name}/{file.relative_to(path).as_posix()}"
        with written_whole(system, target) as draft:
            system.put_file(str(file), draft)


@as_os_error
def push_changed(folder: Path, since: float, wanted: Callable[[str], bool]) -> None:
    """Push the files of a folder whose relative path is ``wanted`` and that have changed.

    That is, whose size differs in the store, or that were written after ``since``. Hidden files are not pushed.
    Processes of a node take turns.
    """
    with alone(folder):
        system, name = objects.located(folder)
        there = system.find(name, detail=True)
        sizes = dict(zip(inner_names(name, there), (one["size"] for one in there.values()), strict=True))
        for file in _files(folder):
            inner = file.relative_to(folder)
            hidden = any(part.startswith(".") for part in inner.parts)
            found = file.stat()
            known = sizes.get(inner.as_posix()) == found.st_size and found.st_mtime < since
            if not hidden and not known and wanted(inner.as_posix()):
                push(file)


@as_os_error
def fetch_longer(path: Path) -> None:
    """Fetch a growing file if the store's is longer than the local one."""
    if inside(path) and (there := stat(path)) is not None:
        size = there[0]
        fetch(path, lambda here: here.stat().st_size >= size)


@as_os_error
def fetch(path: Path, whole: Callable[[Path], bool]) -> Path:
    """Return the local copy of a file or folder in a store; unless it is ``whole``, fetch it, once per node.

    Raises: FileNotFoundError; OSError if the fetched copy is not whole; TimeoutError.
    """
    if not inside(path):
        return path
    with alone(path):
        if path.exists() and whole(path):
            return path
        system, name = objects.located(path)
        draft = path.with_name(f".{path.name}.fetched")
        _clear(draft)
        try:
            _get(system, name, draft)
            if not whole(draft):
                raise OSError(errno.EIO, f"{shown(path)} is torn: its size or checksum is not what was written")
            _clear(path)
            os.replace(draft, path)  # noqa: PTH105
        finally:
            _clear(draft)
    return path


def _get(system: Any, name: str, draft: Path) -> None:
    if not system.isdir(name):
        system.get_file(name, str(draft))
        return
    for inner in inner_names(name, system.find(name)):
        (draft / inner).parent.mkdir(parents=True, exist_ok=True)
        system.get_file(f"{name}/{inner}", str(draft / inner))


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process of this node at a time fetch a file. Raises: TimeoutError after ``FETCH_LIMIT_S``."""
    from filelock import FileLock, Timeout  # who has a folder need not wait for it

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"), mode=0o600)
    try:
        lock.acquire(FETCH_LIMIT_S, _POLL_S)
    except Timeout:
        raise TimeoutError(
            f"{shown(path)} was not fetched within {FETCH_LIMIT_S:.0f} s by another process of this node. "
            "Is the store slow, or gone?"
        ) from None
    try:
        yield
    finally:
        lock.release()


def forget(path: Path) -> None:
    """Delete the local copy of a file or a folder in a store."""
    if inside(path):
        _clear(path)


def forget_others(path: Path, in_use: str | None = None) -> None:
    """Delete the local copies of checkpoints older than a pushed one, except ``in_use``: the store has them."""
    if inside(path):
        for other in path.parent.glob("*report-*"):
            older = other.suffix in (".ckpt", ".tmp") and other.name.lstrip(".") < path.name
            if older and str(other) != in_use:
                with contextlib.suppress(OSError):
                    _clear(other)
