"""Checkpoints on disk: written atomically, checksummed, found again, and kept or pruned.

A checkpoint is a file (or folder) ``report-000008.ckpt`` and, written after it, a small ``report-000008.json`` that
says what it is; ``report-000008.step-000001234.ckpt`` where a gang had to leave between two reports. What has no such
companion is not a checkpoint: a half-written file is never read. A ``pointer.json`` in one of Ray Tune's own checkpoint
folders names a checkpoint by path; a checkpoint that is pointed at is never pruned. Of a sweep in an object store,
commit() uploads a finished checkpoint and fetch_local() downloads it; the JSON files are uploaded when they are
written, and downloaded before they are read.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo
from tunelight.stores import delete, delete_local, files_of, shown, store_of, sync_file, write_atomically

FOLDER = "checkpoints"
POINTER = "pointer.json"
_OWNERS = "owners.json"
_CHUNK = 1 << 20
SPARES = 2
"""How many of the last checkpoints are kept: the last one, and the one to go back to if that is torn."""


def file_name(number: int, between: int = 0, owner: int = 1) -> str:
    """Return the file name of the checkpoint of report ``number``, or of a later step ``between`` it and the next.

    Gangs of a driver that was cut off may still train when a later ``owner`` of the sweep does: each has its own files.
    """
    step = f".step-{between:09d}" if between else ""
    return f"report-{number:06d}{step}{f'.owner-{owner}' if owner > 1 else ''}.ckpt"


def owner_in(name: str) -> int:
    """Return the owner that the name of a checkpoint's file, or of a draft of it, has."""
    found = re.search(r"\.owner-(\d+)\.", name)
    return 1 if found is None else int(found[1])


def age(info: CheckpointInfo) -> tuple[int, int]:
    """Return a key that sorts a trial's checkpoints from the oldest to the newest."""
    return info.number, info.between


def where(number: int, between: int) -> str:
    """Say where a trial stood that wrote a checkpoint, by its :func:`age`: ``report 3, step 120``."""
    return f"report {number}" + (f", step {between}" if between else "")


def is_own(name: str) -> bool:
    """Tell whether this module writes, and uploads, the file with this path relative to the folder of a trial."""
    return name.startswith(f"{FOLDER}/") or fnmatch(name, f"checkpoint_*/{POINTER}")


def temp_path(info: CheckpointInfo, start: str) -> Path:
    """Return the path at which a checkpoint is written before it is committed.

    ``start`` is the same on all ranks, and of this start of the trial alone: workers of an earlier one that were given
    up may still be writing.
    """
    path = Path(info.path)
    return path.with_name(f".{path.name}.{start}.tmp")


def commit(info: CheckpointInfo, written: Path, in_use: str | None = None) -> CheckpointInfo:
    """Turn a temporary file into a checkpoint: sync it to disk, rename it, upload it, then write its companion file.

    Returns ``info`` with size (bytes) and checksum. Of a sweep in a store, local copies of older checkpoints are
    deleted, except ``in_use``. Raises: OSError when the disk is full or gone.
    """
    path = Path(info.path)
    if not written.exists():
        raise CheckpointError(f"The training code was to write a checkpoint to {written}, but wrote none.")
    _sync(written)
    size, checksum = _measure(written)
    discard(path)  # an earlier checkpoint of that report
    os.replace(written, path)  # noqa: PTH105 - the atomic step, by its own name
    done = replace(info, size=size, checksum=checksum)
    store = store_of(path)
    if store is not None:
        store.push(path)
    write_json(_companion(path), done.asdict())
    if store is not None:
        _forget_older(path, in_use)
    return done


def _forget_older(path: Path, in_use: str | None) -> None:
    """Delete this node's copies of checkpoints older than an uploaded one, except ``in_use``: the store has them."""
    for other in path.parent.glob("*report-*"):
        older = other.suffix in (".ckpt", ".tmp") and other.name.lstrip(".") < path.name
        if older and owner_in(other.name) <= owner_in(path.name) and str(other) != in_use:
            with suppress(OSError):
                delete_local(other)


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically, first to the store if the file belongs to one. Raises: OSError."""
    text = json.dumps(data, default=lambda value: value.tolist()).encode()  # NumPy's, in metrics
    path.parent.mkdir(parents=True, exist_ok=True)
    if store := store_of(path):
        store.write(path, text)
    write_atomically(path, text)


def _bring(folder: Path, pattern: str) -> bool:
    """Download the JSON files that match ``pattern``; return False where the folder is the storage itself."""
    if (store := store_of(folder)) is None:
        return False
    store.bring(folder, pattern)
    return True


def find(trial_dir: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Return the finished checkpoints of a trial, oldest first, without those that :func:`take_over` left behind."""
    return _counting(trial_dir, _find_all(trial_dir))


def _counting(trial_dir: str | os.PathLike[str], found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    since = _owners(trial_dir).items()
    return [info for info in found if not any(info.owner < int(owner) and info.number > last for owner, last in since)]


def _find_all(trial_dir: str | os.PathLike[str]) -> list[CheckpointInfo]:
    folder = Path(trial_dir, FOLDER)
    stored = _bring(folder, "*.json")
    infos = [info for path in sorted(folder.glob("report-*.json")) if (info := _read(path))]
    here = (replace(info, path=str(folder / Path(info.path).name)) for info in infos)  # the sweep may have been moved
    return [info for info in here if stored or Path(info.path).exists()]


def take_over(trial_dir: str | os.PathLike[str], owner: int, last: int) -> None:
    """Let only an owner of the sweep's record add to a trial's checkpoints from its report ``last`` on.

    Gangs of an earlier one may train on, and not what its successor's do: what they still write is not of this trial.
    Raises: OSError.
    """
    if owner == 1:
        return
    _bring(Path(trial_dir, FOLDER), _OWNERS)
    if str(owner) not in (known := _owners(trial_dir)):
        write_json(Path(trial_dir, FOLDER, _OWNERS), {**known, str(owner): last})


def _owners(trial_dir: str | os.PathLike[str]) -> dict[str, int]:
    """Return the trial's last report before each owner that has taken it over."""
    try:
        return dict(json.loads(Path(trial_dir, FOLDER, _OWNERS).read_bytes()))
    except (OSError, ValueError):
        return {}


def is_valid(info: CheckpointInfo) -> bool:
    """Return whether size and checksum of the file still match; in a store, which has its own checksums, the size."""
    path = Path(info.path)
    if store := store_of(path):
        stat = store.stat(path)
        return stat is not None and stat[0] == info.size
    return _matches(path, info)


def _matches(path: Path, info: CheckpointInfo) -> bool:
    if not path.exists():
        return False
    size, checksum = _measure(path)
    return size == info.size and info.checksum in (None, checksum)


def fetch_local(path: str | os.PathLike[str]) -> Path:
    """Return a path on this node to a checkpoint; from an object store it is fetched, and its checksum verified.

    Raises: CheckpointError if it cannot be fetched.
    """
    path = Path(path)
    if store := store_of(path):
        try:
            _bring(path.parent, _companion(path).name)
            info = _read(_companion(path))
            store.fetch(path, lambda copy: info is None or _matches(copy, info))
        except OSError as error:
            raise CheckpointError(f"The checkpoint {shown(path)} cannot be fetched: {error}.") from error
    return path


def resume_point(
    trial_dir: str | os.PathLike[str],
    upto: int | None = None,
    base: CheckpointInfo | None = None,
) -> tuple[CheckpointInfo | None, str | None]:
    """Return the checkpoint that a trial continues from, or None to start from scratch; and a warning, if any.

    It is the newest valid checkpoint of the trial's folder, up to report ``upto`` (None: of all reports). The folder
    may know of later reports than the trial's head: a worker that died may have written a checkpoint before.

    Args:
        trial_dir: the trial's folder.
        upto: the last report that counts.
        base: where the trial last started or paused. Only newer checkpoints come before it: older ones may be of
            weights that the trial has replaced since. They are used only if ``base`` itself is damaged.
    """
    newest: CheckpointInfo | None = None
    for info in _candidates(trial_dir, upto, base):
        newest = newest or info
        if is_valid(info):
            return info, None if info is newest else _torn(newest, info)
    return None, None if newest is None else _torn(newest, None)


def _candidates(
    trial_dir: str | os.PathLike[str],
    upto: int | None,
    base: CheckpointInfo | None = None,
) -> Iterator[CheckpointInfo]:
    """Yield the checkpoints that a trial may continue from, the best first."""
    for info in reversed(find(trial_dir)):
        if (upto is None or info.number <= upto) and (base is None or age(info) > age(base)):
            yield info
    if base is not None:
        yield base
        yield from (info for info in reversed(find(Path(base.path).parents[1])) if age(info) < age(base))


def describe_torn(path: Path) -> str | None:
    """Return a sentence if ``path``, on this node, is a damaged checkpoint, else None."""
    info = _read(_companion(path))
    if info is None or _matches(path, info):
        return None
    return f"The checkpoint {path} is torn: its size or checksum is not what was written."


def _torn(info: CheckpointInfo, valid: CheckpointInfo | None) -> str:
    instead = f"{Path(valid.path).name} is used instead" if valid else "it starts from scratch"
    return f"its checkpoint {Path(info.path).name} is torn or gone (its checksum does not fit): {instead}"


def remove_temp_files(trial_dir: str | os.PathLike[str], owner: int = 1) -> None:
    """Delete temporary files of workers that were killed while they wrote a checkpoint, but those of a later owner."""
    for left in Path(trial_dir, FOLDER).glob(".report-*.tmp"):
        if owner_in(left.name) <= owner:
            with suppress(OSError):  # a worker that was given up may still write into it
                delete_local(left)


class CheckpointSet:
    """The checkpoints of a trial that are on disk, as its head knows them.

    Args:
        keep, mode: how many of the best are kept, and whether less or more is better.
        owner: that of the checkpoints that the head's gang makes.
    """

    def __init__(self, keep: int, mode: Literal["min", "max"], owner: int = 1) -> None:
        self.known: list[CheckpointInfo] = []
        self.taken = 0
        """The last report that the driver is known to have taken: a later one may not count."""
        self._keep, self._mode = keep, mode
        self._owner = owner
        self._news: list[CheckpointInfo] = []

    def add(self, info: CheckpointInfo) -> CheckpointInfo:
        """Add a checkpoint, or replace the one of the same path."""
        self.known = [*(known for known in self.known if known.path != info.path), info]
        self._news.append(info)
        return info

    def drain(self) -> list[dict[str, Any]]:
        """Return the checkpoints added since the last call, as plain data."""
        news, self._news = self._news, []
        return [info.asdict() for info in news]

    def prune(self, trial_dir: Path, in_use: CheckpointInfo | None = None) -> None:
        """Delete the checkpoints that are no longer needed (see :func:`prune`); ``in_use`` is needed.

        So are the best and the last if only the reports up to ``taken`` count.
        """
        if len(self.known) > SPARES:
            with suppress(OSError):  # a store that cannot list pins at the moment: it is asked again
                spared = pinned(trial_dir) | ({in_use.path} if in_use else set())
                counted = [info for info in self.known if info.number <= self.taken]
                needed = (*best(counted, self._keep, self._mode), *sorted(counted, key=age)[-1:])
                spared |= {info.path for info in needed}
                self.known = prune(self.known, self._keep, self._mode, spared)

    def look(self, trial_dir: Path) -> None:
        """Find the checkpoints in a trial's folder."""
        self.known = [info for info in find(trial_dir) if info.owner <= self._owner]

    def discard_after(self, number: int, trial_dir: Path) -> None:
        """Delete the checkpoints of later reports, except pinned ones: a trial that goes back makes these again."""
        self.taken = number
        found, spared = _find_all(trial_dir), pinned(trial_dir)
        known = _counting(trial_dir, found)
        self.known = [info for info in known if info.number <= number and info.owner <= self._owner]
        for info in found:
            if info not in self.known and info.owner <= self._owner and info.path not in spared:
                discard(Path(info.path))


def prune(
    known: Iterable[CheckpointInfo], keep: int, mode: Literal["min", "max"], pinned: Iterable[str] = ()
) -> list[CheckpointInfo]:
    """Delete all but the ``keep`` best, the last two and the pinned checkpoints; return those, oldest first."""
    ordered = sorted({info.path: info for info in known}.values(), key=age)
    of_reports = [info.path for info in ordered if not info.between]  # others take over a trial's state of a report
    spared = {info.path for info in (*best(ordered, keep, mode), *ordered[-SPARES:])} | {*of_reports[-1:], *pinned}
    for info in ordered:
        if info.path not in spared:
            try:
                discard(Path(info.path))
            except OSError:  # a store that does not answer at the moment: it is tried again
                spared.add(info.path)
    return [info for info in ordered if info.path in spared]


def best(known: Iterable[CheckpointInfo], keep: int, mode: Literal["min", "max"]) -> list[CheckpointInfo]:
    """Return the ``keep`` best checkpoints by their values, the best first."""
    sign = 1.0 if mode == "min" else -1.0
    judged = (info for info in known if info.value is not None and math.isfinite(info.value))
    return sorted(judged, key=lambda info: (sign * (info.value or 0.0), info.number))[:keep]


def keep_spares(known: Iterable[CheckpointInfo], in_use: CheckpointInfo | None = None) -> list[CheckpointInfo]:
    """Delete all but the last two and ``in_use``; return those, oldest first.

    For a run whose results keep their own checkpoints.
    """
    return prune(known, keep=0, mode="min", pinned={in_use.path} if in_use else ())


def discard(path: Path) -> None:
    """Delete a checkpoint with its companion, if it exists. Raises: OSError."""
    delete(_companion(path))
    delete(path)


def write_pointer(folder: str | os.PathLike[str], info: CheckpointInfo | None) -> None:
    """Write a file into ``folder`` that names a checkpoint (None: the trial has none)."""
    write_json(Path(folder, POINTER), None if info is None else info.asdict())


def read_pointer(folder: str | os.PathLike[str]) -> CheckpointInfo | None:
    """Return the checkpoint that a pointer names, whether it exists or not; a file beside the pointer comes first."""
    pointer = Path(folder, POINTER)
    info = _read(pointer) if pointer.exists() else None
    if info is None:
        return None
    beside = pointer.with_name(info.name or Path(info.path).name)
    return replace(info, path=str(beside)) if beside.exists() else info


def import_from_tune(folder: str | os.PathLike[str], trial_dir: str | os.PathLike[str]) -> CheckpointInfo | None:
    """Return the checkpoint that Tune's checkpoint folder names, at a path that is not deleted by Tune.

    A file beside the pointer may be in a folder that Tune fetched and deletes again: unless the trial's own file
    still exists, it is copied into the trial's folder.
    """
    info = read_pointer(folder)
    if info is None or not Path(info.path).is_relative_to(Path(folder)):
        return info
    home = Path(trial_dir, FOLDER)
    home.mkdir(parents=True, exist_ok=True)
    kept = replace(info, path=str(home / file_name(*age(info), info.owner)), name=None)
    if not is_valid(kept):
        discard(Path(kept.path))
        copy_into(replace(info, name=Path(kept.path).name), home)
        write_json(_companion(Path(kept.path)), kept.asdict())
    return replace(kept, name=info.name)


def copy_from_trial(
    folder: str | os.PathLike[str],
    trial_dir: str | os.PathLike[str],
    number: int | None,
    upto: int | None = None,
    seconds: float | None = None,
    *,
    owner: int = 1,
) -> CheckpointInfo | None:
    """Copy another trial's newest valid checkpoint, as that of report ``number``; return the copy.

    Args:
        folder: the other trial's folder.
        trial_dir: the folder of the trial that gets the copy.
        number: the report that the copy belongs to (None: its own, with its own seconds).
        upto: the other trial's last report that counts; if its checkpoints up to there are pruned, all count.
        seconds: how long the other trial had trained.
        owner: that of the copy.

    Returns: None if there is none. The copy has no value: that was reported by the other trial.
    """
    known = _candidates(folder, upto)
    info = next((saved for saved in known if not saved.between and is_valid(saved)), None) or resume_point(folder)[0]
    if info is None:
        return None
    fetch_local(info.path)
    home = Path(trial_dir, FOLDER)
    home.mkdir(parents=True, exist_ok=True)
    if number is None:
        number, seconds = info.number, info.seconds
    path = str(home / file_name(number, owner=owner))
    copy = replace(info, path=path, number=number, value=None, name=None, seconds=seconds, between=0)
    copy = replace(copy, adopted=True, owner=owner)
    written = temp_path(copy, secrets.token_hex(4))
    copy_into(replace(info, name=written.name), home)
    return commit(copy, written)


def pinned(trial_dir: str | os.PathLike[str]) -> set[str]:
    """Return the paths of checkpoints that pointers in a trial's folder name."""
    infos = (_read(path) for path in _pointers(trial_dir))
    return {info.path for info in infos if info is not None}


def unpin(trial_dir: str | os.PathLike[str]) -> None:
    """Delete the pointers in a trial's folder: its driver begins anew, and an earlier one's pause is past."""
    for path in _pointers(trial_dir):
        delete(path)


def _pointers(trial_dir: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the files in a trial's folder that name a checkpoint for Tune."""
    _bring(Path(trial_dir), f"checkpoint_*/{POINTER}")
    yield from Path(trial_dir).glob(f"checkpoint_*/{POINTER}")


def copy_into(info: CheckpointInfo, folder: str | os.PathLike[str]) -> None:
    """Copy a checkpoint's file into ``folder``, as a hard link where possible."""
    source, target = Path(info.path), Path(folder, info.name or Path(info.path).name)
    if source.is_dir():
        shutil.copytree(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _sync(path: Path) -> None:
    """Sync a file, or all files of a folder, to disk. Raises: OSError."""
    for file in files_of(path):
        with file.open("rb") as stream:
            sync_file(stream.fileno())


def _companion(path: Path) -> Path:
    return path.with_name(f"{path.stem}.json")


def _read(path: Path) -> CheckpointInfo | None:
    try:
        return CheckpointInfo(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):  # also of a trial without one
        return None


def _measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and CRC-32 of a file, or of all files of a folder in order."""
    size = crc = 0
    for file in files_of(path):
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                crc = zlib.crc32(chunk, crc)
    return size, f"crc32:{crc:08x}"
