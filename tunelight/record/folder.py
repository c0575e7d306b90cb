"""A sweep's folder, with ``sweep.yaml`` in it; and objects as plain data for JSON and YAML."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import inspect
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from tunelight.errors import SettingsError, StorageError, first_of, guess
from tunelight.machine.versions import versions_of
from tunelight.record.lease import RECORD_FILE, SWEEP_FILE, is_driven_here, live_driver_of, record_of, why
from tunelight.record.remote import has_record, reaching, refresh
from tunelight.settings import check_paired, check_setting
from tunelight.settings.checks import BoundedLoader, folder_name
from tunelight.stores import ODD, delete_local, shown, store_of, working, write_atomically
from tunelight.stores.masking import masked, masked_command, masked_settings

_DEPTH: Final = 20


def _default(value: Any) -> Any:
    """Convert an object without a type in JSON: arrays and tensors to lists, paths to text."""
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else masked(repr(value))


_encoder = json.JSONEncoder(default=_default, separators=(",", ":"))


def encode(value: Any) -> str:
    """Return ``value`` as a line of JSON; never raises."""
    try:
        return _encoder.encode(value)
    except Exception:  # noqa: BLE001 - odd keys, cycles, objects that refuse: recording must not raise
        return _encoder.encode(_spell_out(value, _DEPTH))


def _spell_out(value: Any, depth: int) -> Any:
    if depth and isinstance(value, Mapping):
        return {str(key): _spell_out(inner, depth - 1) for key, inner in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_spell_out(inner, depth - 1) for inner in value]
    try:
        return json.loads(_encoder.encode(value))
    except Exception:  # noqa: BLE001 - whatever it is, its repr is better than no record
        return masked(repr(value))


def to_json_types(value: Any) -> Any:
    """Return ``value`` in JSON's types: arrays as numbers and lists, paths and classes as text."""
    return json.loads(encode(value))


def write_text(path: Path, text: str) -> None:
    """Write a file to the disk, atomically, and make its folder if need be. Raises: StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, sync=True)
    except OSError as error:
        raise StorageError(f"Could not write {path}: {why(error)}. Choose a path that can be written.") from error


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; text that YAML 1.2 takes for a number ("1e-4") is quoted, as that of YAML 1.1 is."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^0o[0-7]+$"),
    list("-+.0123456789"),
)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return plain YAML that readers of YAML 1.1 (``yaml.safe_load``) and 1.2 read as the same numbers and text."""
    return yaml.dump(to_json_types(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def versions() -> dict[str, str | None]:
    """Return the versions of the packages that matter to a sweep (None: not installed), without importing them."""
    return versions_of(
        ("python", "torch", "pytorch-lightning", "lightning", "ray", "tunelight", "numpy", "optuna", "horovod")
    )


def create_sweep_folder(
    storage: str | os.PathLike[str], name: str | None = None, *, default: str = "sweep", resume: bool = False
) -> Path:
    """Create and claim the folder ``storage/name`` of a new sweep. Runs on: driver.

    Args:
        storage: a folder, or the URL of one in an object store; it is created if missing.
        name: the sweep's name (None: ``<default>-YYYYmmdd-HHMMSS``, where ``default`` is the name of the train
            function or model).
        resume: whether a sweep of that name would have been resumed, for the error.

    Raises: SettingsError for a name or storage that can be no folder; StorageError where a sweep of that name
        exists, or the folder cannot be written.
    """
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", default).strip("-.") or "sweep"
    stem = f"{readable}-{time.strftime('%Y%m%d-%H%M%S')}" if name is None else name
    folder, attempt = sweep_folder(storage, stem), 1
    parent = folder.parent
    try:
        while not _claim(folder):
            if name is not None:
                raise _taken(folder, resume)
            attempt += 1
            folder = parent / f"{stem}-{attempt}"
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"The sweep's folder {shown(folder)} cannot be written: {why(error)}. Choose another storage=."
        ) from error
    return folder


def _taken(folder: Path, resume: bool) -> StorageError:
    if resume:
        return StorageError(f"{shown(folder)} was begun by another driver just now: the same call goes on with it.")
    runs = ", and runs now" if live_driver_of(folder) is not None else ""
    number, store = 2, store_of(folder.parent)
    while (free := folder.with_name(f"{folder.name}-{number}")).exists() or (store and store.has_any(free)):
        number += 1
    return StorageError(
        f"{shown(folder)} exists already{runs}, and is not overwritten. Choose another name "
        f"(name={free.name!r}, say), leave name= out for a new one each time, or go on "
        "with the sweep that is there: resume=True."
    )


def sweep_folder(storage: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of the sweep ``name``. Raises: SettingsError for an invalid name."""
    folder = working(storage).absolute() / folder_name("A sweep's name", name)
    if store_of(folder) and ODD.search(name):
        raise SettingsError(
            f"In a store, no sweep's name may hold any of @ * ? [ ], as {name!r} does: they are patterns."
        )
    return folder


def _claim(folder: Path) -> bool:
    """Make ``folder`` this sweep's by creating its record; False if it is not empty."""
    if store := store_of(folder):
        claim = uuid.uuid4().hex.encode()  # no line yet; by which a claim whose answer was lost is known as this one
        if store.has_any(folder) or not store.create(folder / RECORD_FILE, claim) or is_driven_here(folder):
            return False  # or it was created here, and somebody resumed it before this process went on
        delete_local(folder)  # of a sweep that was deleted there
    folder.mkdir(parents=True, exist_ok=True)
    if store is None and any(folder.iterdir()):
        return False
    try:
        (folder / RECORD_FILE).open("xb" if store is None else "wb").close()  # a reader here may have fetched the claim
    except FileExistsError:
        return False
    return True


def write_sweep_file(folder: str | os.PathLike[str], sweep: Mapping[str, Any]) -> Path:
    """Write ``sweep.yaml``: the sweep's settings, its space, versions; secrets are masked.

    Raises: StorageError.
    """
    path = Path(folder, SWEEP_FILE)
    write_text(path, to_yaml(masked_settings(sweep)))
    return path


def read_sweep_file(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read ``sweep.yaml``; {} if there is none. What somebody has put into it by hand is masked as well.

    Raises: StorageError if it is no YAML mapping.
    """
    path = Path(folder, SWEEP_FILE)
    try:
        refresh(path)
        data = yaml.load(path.read_text(encoding="utf-8"), BoundedLoader)  # noqa: S506 - of PyYAML's safe loader
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read: {error}. Restore it, or delete it to go by the record.") from error
    if not isinstance(data, dict):
        raise StorageError(f"{path} must hold a mapping, but holds {type(data).__name__}. Restore or delete it.")
    try:  # what readers of results go by
        metric, mode = (data.get(name) and check_setting(name, data[name]) for name in ("metric", "mode"))
        check_paired(metric, mode or "min")
    except SettingsError as error:
        raise StorageError(f"{path} has been changed: {error} Restore it, or delete it to go by the record.") from error
    try:
        return masked_settings(data)
    except RecursionError:
        raise StorageError(f"{path} cannot be read: a value in it contains itself. Restore or delete it.") from None


# --- How a sweep was run: no environment variables are kept ----------------------------------------


_GIT_S: Final = 5.0
"""How long git may take, so that no sweep waits for a slow file system."""


def provenance(file: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return ``versions``, and as ``run``: command, cwd, git, and the space's ``file``; for sweep.yaml and the record.

    ``git`` is the state of the working directory: ``commit``, and whether it was ``dirty`` (changed or untracked
    files); None outside of a repository, or where git does not answer.
    """
    run = {
        "command": masked_command(sys.orig_argv),
        "cwd": str(Path.cwd()),
        "file": None if file is None else str(Path(file).absolute()),
        "git": git_state(Path.cwd()),
    }
    return {"versions": versions(), "run": run}


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit that is checked out in ``folder``, and whether files differ from it; None if there is none."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-C", str(folder), *words],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# --- Find sweeps on disk: by path, by name, or all in a folder -------------------------------------


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
    return sorted(found, key=lambda sweep: -sweep.written)


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
        return next((sweep.folder for sweep in known if not _reproduces(sweep.folder)), known[0].folder)
    inside = [sweep.folder.name for sweep in list_sweeps(path)] if is_folder(path) else []
    if inside:
        raise StorageError(
            f"{path} is no sweep, but holds some: {first_of(inside, 8)}. Give one of them: {path / inside[0]}."
        )
    names = [sweep.folder.name for sweep in known]
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
