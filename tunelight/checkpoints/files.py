"""Checkpoints on disk: written atomically, checksummed, found again, and kept or pruned.

A checkpoint is a file (or folder) ``report-000008.ckpt`` and, written after it, a small
``report-000008.json`` that says what it is. What has no such companion is not a checkpoint: a half-written
file is never seen. A ``pointer.json`` that Ray Tune keeps in one of its own checkpoint folders names a
checkpoint by path, and what is pointed at is never pruned. A sweep in an object store has all of this there (see
:mod:`tunelight.stores`): a finished checkpoint is pushed, and here() fetches one that is to be opened.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tunelight import stores
from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo

FOLDER = "checkpoints"
POINTER = "pointer.json"
HEARD = "heard.json"
_CHUNK = 1 << 20
SPARES = 2
"""How many of the last checkpoints are kept: the last one, and the one to go back to if that is torn."""


def file_name(number: int) -> str:
    """Return the file name of the checkpoint of report ``number``."""
    return f"report-{number:06d}.ckpt"


def draft(info: CheckpointInfo) -> Path:
    """Return where a checkpoint is written before it is finished."""
    path = Path(info.path)
    return path.with_name(f".{path.name}.tmp")


def finish(info: CheckpointInfo, written: Path) -> CheckpointInfo:
    """Turn a written draft into a checkpoint: bring it to the disk, rename, then say so in its companion.

    Returns ``info`` with size (bytes) and checksum. Raises: OSError when the disk is full or gone.
    """
    path = Path(info.path)
    if not written.exists():
        raise CheckpointError(f"The training code was to write a checkpoint to {written}, but wrote none.")
    _sync(written)
    size, checksum = _measure(written)
    if path.is_dir():
        shutil.rmtree(path)
    os.replace(written, path)  # noqa: PTH105 - the atomic step, by its own name
    done = replace(info, size=size, checksum=checksum)
    if stores.inside(path):
        stores.drop_there(_companion(path))  # of one of that report before: until this one is whole
        if path.is_dir():
            stores.drop_there(path)
        stores.push(path)
    write_json(_companion(path), done.asdict())
    stores.forget_others(path)
    return done


def write_json(path: Path, data: object) -> None:
    """Write JSON so that a reader sees all of it or none of it."""
    stores.write(path, json.dumps(data).encode())


def find(trial_dir: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Return the finished checkpoints of a trial, oldest first."""
    folder = Path(trial_dir, FOLDER)
    found = []
    for text in stores.texts(folder, "report-*.json").values():
        info = _parsed(text)
        if info is not None:
            here = folder / Path(info.path).name  # the sweep's folder may have been moved
            if stores.exists(here):
                found.append(replace(info, path=str(here)))
    return found


def is_whole(info: CheckpointInfo) -> bool:
    """Tell whether the file is still what was written: size and checksum; in a store, which keeps its own, the size."""
    path = Path(info.path)
    if stores.inside(path):
        there = stores.stat(path)
        return there is not None and there[0] == info.size
    return path.exists() and _is(path, info)


def _is(path: Path, info: CheckpointInfo) -> bool:
    size, checksum = _measure(path)
    return size == info.size and info.checksum in (None, checksum)


def here(path: str | os.PathLike[str]) -> Path:
    """Return a checkpoint's path, once it is on this node: of a store, it is fetched, and held against its checksum.

    Raises: CheckpointError where it cannot be had.
    """
    path = Path(path)
    if not stores.inside(path):
        return path
    info = _read(_companion(path))
    try:
        return stores.fetch(path, lambda found: info is None or _is(found, info))
    except OSError as error:
        raise CheckpointError(f"The checkpoint {stores.shown(path)} cannot be fetched: {error}.") from error


def last_whole(
    trial_dir: str | os.PathLike[str], number: int | None = None
) -> tuple[CheckpointInfo | None, str | None]:
    """Return the newest checkpoint of a trial whose checksum holds, or None; and what to warn the person of.

    ``number`` is the last report that counts (None: all do).
    """
    found = [info for info in find(trial_dir) if number is None or info.number <= number]
    whole = next((info for info in reversed(found) if is_whole(info)), None)
    return whole, None if not found or whole == found[-1] else _torn(found[-1], whole)


def whole_or_before(info: CheckpointInfo) -> tuple[CheckpointInfo | None, str | None]:
    """Return a checkpoint if its checksum holds, else as :func:`last_whole` does the newest of its trial before it."""
    if is_whole(info):
        return info, None
    whole, _ = last_whole(Path(info.path).parents[1], info.number - 1)
    return whole, _torn(info, whole)


def newest_whole(
    trial_dir: Path, number: int, resumed: CheckpointInfo | None
) -> tuple[CheckpointInfo | None, str | None]:
    """Return from where a trial that failed after report ``number`` goes on, and what to warn the person of.

    Its folder knows more than its head has heard: a worker that died may have finished one before. What is older
    than ``resumed``, from where it last started, may be of another line of the trial.
    """
    whole, warning = last_whole(trial_dir, number)
    if resumed is None or (whole is not None and whole.number > resumed.number):
        return whole, warning
    whole, torn = whole_or_before(resumed)
    return whole, torn or warning


def describe_torn(path: Path) -> str | None:
    """Return a sentence if ``path`` is a checkpoint and no longer what was written, else None."""
    info = _read(_companion(path))
    if info is None or is_whole(replace(info, path=str(path))):
        return None
    return f"The checkpoint {path} is torn: its size or checksum is not what was written."


def _torn(info: CheckpointInfo, whole: CheckpointInfo | None) -> str:
    instead = f"{Path(whole.path).name} is used instead" if whole else "it starts from scratch"
    return f"its checkpoint {Path(info.path).name} is torn or gone (its checksum does not fit): {instead}"


def remove_drafts(trial_dir: str | os.PathLike[str]) -> None:
    """Delete what a worker was writing when it was killed."""
    for left in Path(trial_dir, FOLDER).glob(".report-*.tmp"):
        discard(left)


class Kept:
    """What the head of a trial knows of its checkpoints: ``known`` are on disk, ``newest`` is of this start."""

    def __init__(self, keep: int, mode: Literal["min", "max"]) -> None:
        self.known: list[CheckpointInfo] = []
        self.newest: CheckpointInfo | None = None
        self._keep = keep
        self._mode = mode
        self._news: list[CheckpointInfo] = []

    def add(self, info: CheckpointInfo) -> CheckpointInfo:
        """Note a finished checkpoint, perhaps again."""
        self.known = [*(known for known in self.known if known.path != info.path), info]
        self.newest = info
        self._news.append(info)
        return info

    def news(self) -> list[dict[str, Any]]:
        """Return those that were added since this was last asked, as plain data."""
        news, self._news = self._news, []
        return [info.asdict() for info in news]

    def prune(self, trial_dir: Path) -> None:
        """Delete those that nobody needs any more (see :func:`prune`)."""
        if len(self.known) > SPARES:
            with suppress(OSError):  # a store that does not say just now what is pinned: it is asked again
                self.known = prune(self.known, self._keep, self._mode, pinned(trial_dir))

    def forget_after(self, number: int, trial_dir: Path) -> None:
        """Know those up to report ``number`` (see :func:`forget_after`)."""
        self.known = forget_after(number, trial_dir)


def prune(
    known: Iterable[CheckpointInfo], keep: int, mode: Literal["min", "max"], pinned: Iterable[str] = ()
) -> list[CheckpointInfo]:
    """Delete all but the ``keep`` best, the last two, and the pinned ones; return what is left, oldest first."""
    ordered = sorted(known, key=lambda info: info.number)
    sign = 1.0 if mode == "min" else -1.0
    judged = [info for info in ordered if info.value is not None and math.isfinite(info.value)]
    best = sorted(judged, key=lambda info: (sign * (info.value or 0.0), info.number))[:keep]
    spared = {info.path for info in best} | {info.path for info in ordered[-SPARES:]} | set(pinned)
    for info in ordered:
        if info.path not in spared:
            try:
                discard(Path(info.path))
            except OSError:  # a store that does not answer just now: it is tried again
                spared.add(info.path)
    return [info for info in ordered if info.path in spared]


def keep_spares(known: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    """Delete all but the last two; return those, oldest first. For a run whose results keep their own checkpoints."""
    by_path = {info.path: info for info in known}
    return prune(by_path.values(), keep=0, mode="min")


def discard(path: Path) -> None:
    """Delete a draft, or a checkpoint with its companion; nothing happens where there is none."""
    stores.drop(_companion(path))
    stores.drop(path)


def write_pointer(folder: str | os.PathLike[str], info: CheckpointInfo | None) -> None:
    """Leave in ``folder`` the word where a checkpoint lies (None: the trial has none)."""
    write_json(Path(folder, POINTER), None if info is None else info.asdict())


def read_pointer(folder: str | os.PathLike[str]) -> CheckpointInfo | None:
    """Return the checkpoint that a pointer names, gone or not; a real file beside the pointer comes first."""
    pointer = Path(folder, POINTER)
    info = _read(pointer) if pointer.exists() else None
    if info is None:
        return None
    beside = pointer.with_name(info.name or Path(info.path).name)
    return replace(info, path=str(beside)) if beside.exists() else info


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


def take_over(
    folder: str | os.PathLike[str],
    trial_dir: str | os.PathLike[str],
    number: int,
    upto: int | None = None,
    seconds: float | None = None,
) -> CheckpointInfo | None:
    """Make a whole checkpoint of the trial in ``folder`` that of report ``number`` of another trial.

    The last up to report ``upto``; where that is pruned, the last of all. ``seconds``: how long the other has trained.

    Returns: None where there is none. It has no value there: what was reported with it was the other trial's.
    """
    info = last_whole(folder, upto)[0] or last_whole(folder)[0]
    if info is None:
        return None
    here(info.path)
    home = Path(trial_dir, FOLDER)
    home.mkdir(parents=True, exist_ok=True)
    taken = replace(info, path=str(home / file_name(number)), number=number, value=None, name=None, seconds=seconds)
    written = draft(taken)
    discard(written)
    copy_into(replace(info, name=written.name), home)
    discard(_companion(Path(taken.path)))
    return finish(taken, written)


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


def tell_heard(number: int, trial_dir: str | os.PathLike[str], seconds: float | None = None) -> None:
    """Tell a trial that starts again which of its reports was the last one that its driver heard of. Runs on: driver.

    A gang may have been ahead of that when its head was lost; what it reported then, it has to report again.
    ``seconds``: how long it had trained then, as the driver knows it.
    """
    Path(trial_dir).mkdir(parents=True, exist_ok=True)
    write_json(Path(trial_dir, HEARD), {"number": number, "seconds": seconds})


def heard(trial_dir: str | os.PathLike[str]) -> int | None:
    """Return what :func:`tell_heard` said last; None where nobody said anything, so that all reports count."""
    return _heard(trial_dir)[0]


def _heard(trial_dir: str | os.PathLike[str]) -> tuple[int | None, float | None]:
    """Return number and seconds of the last report that a driver heard of."""
    with suppress(FileNotFoundError):
        told = json.loads(stores.read(Path(trial_dir, HEARD)))
        if isinstance(told, dict):
            return int(told["number"]), told.get("seconds")
        return int(told), None  # as it was written before seconds were counted
    return None, None


def with_seconds(info: CheckpointInfo, trial_dir: str | os.PathLike[str]) -> CheckpointInfo:
    """Return a checkpoint that says how long its trial had trained, also one that was written before that was counted.

    Of such a one: its share, by the number of reports, of what the driver knows of the last report that it heard of.
    """
    number, seconds = _heard(trial_dir) if info.seconds is None else (None, None)
    if not number or seconds is None:
        return info
    return replace(info, seconds=seconds * info.number / number)


def cannot_go_on(trial_id: str, number: int, lost: CheckpointInfo | None) -> CheckpointError:
    """Say why a trial that was paused cannot go on."""
    paused = f"Trial {trial_id} was paused at report {number}"
    if lost is None:
        return CheckpointError(
            f"{paused} without a checkpoint, so it cannot go on. Use tunelight.TuneReportCheckpointCallback, or a "
            "scheduler that does not pause."
        )
    return CheckpointError(
        f"{paused}, but the checkpoint {lost.path} is torn or gone, and so is what was before it. Whatever deletes "
        "files in a sweep's folder while it runs has to leave those of trials that are not over."
    )


def pinned(trial_dir: str | os.PathLike[str]) -> set[str]:
    """Return the checkpoints that pointers in a trial's folder name."""
    infos = (_parsed(text) for text in stores.texts(Path(trial_dir), f"checkpoint_*/{POINTER}").values())
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


def _sync(path: Path) -> None:
    """Bring a file, or all files of a folder, to the disk itself."""
    for file in _files(path):
        with file.open("rb") as stream, suppress(OSError):  # not every file system can
            os.fsync(stream.fileno())


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _companion(path: Path) -> Path:
    return path.with_name(f"{path.stem}.json")


def _read(path: Path) -> CheckpointInfo | None:
    try:
        return _parsed(stores.read(path))
    except OSError:
        return None


def _parsed(text: bytes) -> CheckpointInfo | None:
    try:
        data = json.loads(text)
        return None if data is None else CheckpointInfo(**data)
    except (ValueError, TypeError):
        return None


def _measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and CRC-32 of a file, or of all files of a folder in order."""
    size = crc = 0
    for file in _files(path):
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                crc = zlib.crc32(chunk, crc)
    return size, f"crc32:{crc:08x}"
