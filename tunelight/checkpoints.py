"""Checkpoints on disk: written atomically, checksummed, found again, and kept or pruned.

A checkpoint is a file (or folder) ``report-000008.ckpt`` and, written after it, a small
``report-000008.json`` that says what it is. What has no such companion is not a checkpoint: a half-written
file is never seen. A ``pointer.json`` that Ray Tune keeps in one of its own checkpoint folders names a
checkpoint by path, and what is pointed at is never pruned.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo

FOLDER = "checkpoints"
POINTER = "pointer.json"
_CHUNK = 1 << 20


def file_name(number: int) -> str:
    """Return the file name of the checkpoint of report ``number``."""
    return f"report-{number:06d}.ckpt"


def draft(info: CheckpointInfo) -> Path:
    """Return where a checkpoint is written before it is finished."""
    path = Path(info.path)
    return path.with_name(f".{path.name}.tmp")


def finish(info: CheckpointInfo, written: Path) -> CheckpointInfo:
    """Turn a written draft into a checkpoint: rename, then say so in its companion.

    Returns ``info`` with size (bytes) and checksum. Raises: OSError when the disk is full or gone.
    """
    path = Path(info.path)
    if not written.exists():
        raise CheckpointError(f"The training code was to write a checkpoint to {written}, but wrote none.")
    size, checksum = _measure(written)
    if path.is_dir():
        shutil.rmtree(path)
    os.replace(written, path)  # noqa: PTH105 - the atomic step, by its own name
    done = replace(info, size=size, checksum=checksum)
    write_json(_companion(path), done.asdict())
    return done


def write_json(path: Path, data: object) -> None:
    """Write JSON so that a reader sees all of it or none of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data))
    os.replace(temporary, path)  # noqa: PTH105


def find(trial_dir: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Return the finished checkpoints of a trial, oldest first."""
    folder = Path(trial_dir, FOLDER)
    found = []
    for companion in sorted(folder.glob("report-*.json")):
        info = _read(companion)
        if info is not None:
            here = folder / Path(info.path).name  # the sweep's folder may have been moved
            if here.exists():
                found.append(replace(info, path=str(here)))
    return found


def is_whole(info: CheckpointInfo) -> bool:
    """Tell whether the file is still what was written (size and checksum)."""
    path = Path(info.path)
    if not path.exists():
        return False
    size, checksum = _measure(path)
    return size == info.size and info.checksum in (None, checksum)


def last_whole(trial_dir: str | os.PathLike[str]) -> CheckpointInfo | None:
    """Return the newest checkpoint of a trial whose checksum holds, or None."""
    return next((info for info in reversed(find(trial_dir)) if is_whole(info)), None)


def prune(
    known: Iterable[CheckpointInfo], keep: int, mode: Literal["min", "max"], pinned: Iterable[str] = ()
) -> list[CheckpointInfo]:
    """Delete all but the ``keep`` best, the last, and the pinned ones; return what is left, oldest first."""
    ordered = sorted(known, key=lambda info: info.number)
    sign = 1.0 if mode == "min" else -1.0
    judged = [info for info in ordered if info.value is not None and math.isfinite(info.value)]
    best = sorted(judged, key=lambda info: (sign * (info.value or 0.0), info.number))[:keep]
    spared = {info.path for info in best} | {info.path for info in ordered[-1:]} | set(pinned)
    for info in ordered:
        if info.path not in spared:
            discard(Path(info.path))
    return [info for info in ordered if info.path in spared]


def discard(path: Path) -> None:
    """Delete a draft, or a checkpoint with its companion; nothing happens where there is none."""
    _companion(path).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_pointer(folder: str | os.PathLike[str], info: CheckpointInfo | None) -> None:
    """Leave in ``folder`` the word where a checkpoint lies (None: the trial has none)."""
    write_json(Path(folder, POINTER), None if info is None else info.asdict())


def read_pointer(folder: str | os.PathLike[str]) -> CheckpointInfo | None:
    """Return the checkpoint that a pointer names; a real file beside the pointer comes first.

    Raises: CheckpointError when it is gone.
    """
    pointer = Path(folder, POINTER)
    info = _read(pointer) if pointer.exists() else None
    if info is None:
        return None
    beside = pointer.with_name(info.name or Path(info.path).name)
    if beside.exists():
        return replace(info, path=str(beside))
    if not Path(info.path).exists():
        raise CheckpointError(f"The checkpoint {info.path} is gone; {pointer} points at it.")
    return info


def adopt(folder: str | os.PathLike[str], trial_dir: str | os.PathLike[str]) -> CheckpointInfo | None:
    """Return the checkpoint that ``folder`` names, in a place that stays.

    A real file beside the pointer may lie in a folder that Tune fetched and deletes again: unless the trial's
    own file is still there, it is put into the trial's folder.
    """
    info = read_pointer(folder)
    if info is None or not Path(info.path).is_relative_to(Path(folder)):
        return info
    home = Path(trial_dir, FOLDER)
    home.mkdir(parents=True, exist_ok=True)
    kept = replace(info, path=str(home / file_name(info.number)), name=None)
    if not is_whole(kept):
        discard(Path(kept.path))
        copy_into(replace(info, name=Path(kept.path).name), home)
        write_json(_companion(Path(kept.path)), kept.asdict())
    return replace(kept, name=info.name)


def forget_after(number: int, trial_dir: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Delete a trial's checkpoints of later reports than ``number``, but pinned ones; return the earlier ones.

    A trial that goes back reports these numbers again.
    """
    spared = pinned(trial_dir)
    earlier = []
    for info in find(trial_dir):
        if info.number <= number:
            earlier.append(info)
        elif info.path not in spared:
            discard(Path(info.path))
    return earlier


def pinned(trial_dir: str | os.PathLike[str]) -> set[str]:
    """Return the checkpoints that pointers in a trial's folder name."""
    infos = (_read(pointer) for pointer in Path(trial_dir).glob(f"checkpoint_*/{POINTER}"))
    return {info.path for info in infos if info is not None}


def copy_into(info: CheckpointInfo, folder: str | os.PathLike[str]) -> None:
    """Put a checkpoint's file into ``folder``: as a hard link where that works, so that it is held once."""
    source, target = Path(info.path), Path(folder, info.name or Path(info.path).name)
    if source.is_dir():
        shutil.copytree(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _companion(path: Path) -> Path:
    return path.with_name(f"{path.stem}.json")


def _read(path: Path) -> CheckpointInfo | None:
    try:
        data = json.loads(path.read_text())
        return None if data is None else CheckpointInfo(**data)
    except (OSError, ValueError, TypeError):
        return None


def _measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and CRC-32 of a file, or of all files of a folder in order."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    size = crc = 0
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                crc = zlib.crc32(chunk, crc)
    return size, f"crc32:{crc:08x}"
