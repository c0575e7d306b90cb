"""Store: moves files between their working folders on the nodes and an object store."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from tunelight.errors import SettingsError
from tunelight.stores.atomic import replacing, write_atomically
from tunelight.stores.paths import kind_of, root_of, shown, split

FETCH_LIMIT_S: Final = 1800.0
"""How long a process waits while another one on its node fetches the same file."""
PUSH_LIMIT_S: Final = 120.0
"""How long the end of a trial waits for its ranks' uploads."""
_POLL_S: Final = 0.2
_SETTLED_S: Final = 1.0
"""How long others may take to write an object that they have just seen missing."""


def store_of(path: str | os.PathLike[str]) -> Store | None:
    """Return the object store that a file belongs to; None where its folder is the storage itself."""
    parts = split(path)
    return None if parts is None else _store(parts[0])


def delete(path: Path) -> None:
    """Delete a file or a folder on this node, and in its store if it has one. Raises: OSError."""
    if store := store_of(path):
        store.delete(path)
    delete_local(path)


def delete_local(path: Path) -> None:
    """Delete a file or a folder on this node, if it exists; of a link, only the link. Raises: OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_of(path: Path) -> list[Path]:
    """Return a file, or all files below a folder in order."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process of this node at a time move a file. Raises: TimeoutError after ``FETCH_LIMIT_S``."""
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


class Store:
    """An object store. Paths are those of files in working folders, which need not exist here.

    Processes work on the files on their node, and only these methods move them. All raise errors of the store as
    OSError, whatever their class.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    @contextlib.contextmanager
    def at(self, path: Path) -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system, without cached listings, and the name there of a path's object."""
        try:
            self._system.invalidate_cache()
            yield self._system, self._name(path)
        except (OSError, SettingsError):
            raise
        except Exception as error:
            text = f"{shown(path)}: {type(error).__name__}: {error}"
            raise OSError(errno.EIO, text) from error

    @functools.cached_property
    def _system(self) -> Any:
        import fsspec  # who has a folder need not wait for it

        options: dict[str, Any] = {"use_listings_cache": False} if kind_of(self._protocol).async_impl else {}
        if self._protocol == "local":
            options["auto_mkdir"] = True
        return fsspec.filesystem(self._protocol, **options)

    def _name(self, path: Path) -> str:
        parts = split(path)
        if parts is None or parts[0] != self._protocol:
            raise ValueError(f"{path} belongs to no {self._protocol} store.")
        return root_of(self._protocol) + "/".join(parts[1:])

    # -- what the store has

    def stat(self, path: Path) -> tuple[int, float] | None:
        """Return size (bytes; of a folder, that of its objects) and time of an object; None if there is none."""
        with self.at(path) as (system, name):
            try:
                entry = system.info(name)
            except FileNotFoundError:
                return None
            if entry["type"] == "directory":
                sizes = [inner["size"] for inner in system.find(name, detail=True).values()]
                return (sum(sizes), 0.0) if sizes else None
            modified = entry.get("LastModified")  # S3 has it; others are asked
            return int(entry["size"]), float((modified or system.modified(name)).timestamp())

    def has_any(self, folder: Path) -> bool:
        """Tell whether a folder is not empty."""
        with self.at(folder) as (system, name):
            return any(_entries(system, name, "*", kind) for kind in ("file", "directory"))

    def listed(self, folder: Path, pattern: str) -> list[Path]:
        """Return the files below ``folder`` whose relative path matches ``pattern`` (fnmatch), sorted."""
        with self.at(folder) as (system, name):
            *folders, last = pattern.split("/")
            names = [name]
            for part, kind in [*((inner, "directory") for inner in folders), (last, "file")]:
                if kind == "directory" and not any(sign in part for sign in "*?["):
                    names = [f"{parent}/{part}" for parent in names]
                else:
                    names = [entry for parent in names for entry in _entries(system, parent, part, kind)]
            return [folder / inner for inner in sorted(_relative(name, entry) for entry in names)]

    def read(self, path: Path) -> bytes:
        """Return an object's contents."""
        with self.at(path) as (system, name):
            return bytes(system.cat_file(name))

    # -- from this node to the store

    def write(self, path: Path, data: bytes) -> None:
        """Write an object; readers see all of it or none of it."""
        with self.at(path) as (system, name), _whole(system, name) as target:
            system.pipe_file(target, data)

    def push(self, path: Path) -> None:
        """Upload a file, or all files of a folder."""
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "nothing is there that could be brought to its store", str(path))
        with self.at(path) as (system, name):
            for file in files_of(path):
                target = name if file == path else f"{name}/{file.relative_to(path).as_posix()}"
                with _whole(system, target) as temporary:
                    system.put_file(str(file), temporary)

    def push_changed(self, folder: Path, since: float, wanted: Callable[[str], bool]) -> None:
        """Push the files of a folder whose relative path is ``wanted`` and that have changed.

        That is, whose size differs in the store, or that were written after ``since``. Hidden files are not pushed.
        Processes of a node take turns.
        """
        with alone(folder), self.at(folder) as (system, name):
            sizes = {_relative(name, key): entry["size"] for key, entry in system.find(name, detail=True).items()}
            for file in files_of(folder):
                inner, stat = file.relative_to(folder), file.stat()
                hidden = any(part.startswith(".") for part in inner.parts)
                unchanged = sizes.get(inner.as_posix()) == stat.st_size and stat.st_mtime < since
                if not hidden and not unchanged and wanted(inner.as_posix()):
                    self.push(file)

    def create(self, path: Path, data: bytes) -> bool:
        """Create an object; False if it exists. Of several at once one succeeds.

        Where the store, or its library, cannot refuse an object that exists, whose data are there after a second.
        """
        from fsspec.spec import AbstractFileSystem  # who has a folder need not wait for it

        with self.at(path) as (system, name):
            if self.stat(path) is not None:
                return False
            try:
                if getattr(system, "local_file", False):
                    with system.open(name, "xb") as stream:
                        stream.write(data)
                elif not system.async_impl and type(system).pipe_file is AbstractFileSystem.pipe_file:
                    raise NotImplementedError  # it looks, and writes then
                else:
                    system.pipe_file(name, data, mode="create")
            except (NotImplementedError, TypeError, ValueError):
                system.pipe_file(name, data)
                time.sleep(_SETTLED_S)
                return self.read(path) == data
            except OSError as error:
                if not isinstance(error, FileExistsError) and self.stat(path) is None:
                    raise
                return bool(data) and self.read(path) == data  # true where its answer was lost, and it was sent again
            return True

    def delete(self, path: Path) -> None:
        """Delete an object, or all of a folder, in the store only, if it exists."""
        with self.at(path) as (system, name), contextlib.suppress(FileNotFoundError):
            system.rm(name, recursive=True)

    # -- from the store to this node

    def fetch(self, path: Path, valid: Callable[[Path], bool]) -> None:
        """Download a file or folder unless that on this node is ``valid``; once per node.

        Raises: FileNotFoundError; OSError if the downloaded copy is not valid; TimeoutError.
        """
        with alone(path), self.at(path) as (system, name):
            if path.exists() and valid(path):
                return
            copy = path.with_name(f".{path.name}.fetched")
            delete_local(copy)
            try:
                inner = [_relative(name, key) for key in system.find(name)] if system.isdir(name) else [""]
                for file in inner:
                    (copy / file).parent.mkdir(parents=True, exist_ok=True)
                    system.get_file(f"{name}/{file}" if file else name, str(copy / file))
                if not valid(copy):
                    raise OSError(errno.EIO, f"{shown(path)} is torn: its size or checksum is not what was written")
                delete_local(path)
                os.replace(copy, path)  # noqa: PTH105
            finally:
                delete_local(copy)

    def update(self, path: Path) -> bool:
        """Download a growing file if the store's differs; False if the store has none.

        A local file that continues the store's is kept: who wrote it was killed before it could upload the rest.
        A downloaded file has the time of the store's, by which it is known again.
        """
        stat = self.stat(path)
        if stat is None:
            return False
        size, modified = stat
        with contextlib.suppress(FileNotFoundError):
            if (path.stat().st_size, path.stat().st_mtime) == (size, modified):
                return True
        stored, local = self.read(path), path.read_bytes() if path.exists() else b""
        if len(local) > len(stored) and local.startswith(stored):
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        if local and stored.startswith(local):
            with path.open("ab") as stream:  # whoever follows it reads on
                stream.write(stored[len(local) :])
        else:
            write_atomically(path, stored)
        os.utime(path, (modified, modified))
        return True

    def bring(self, folder: Path, pattern: str) -> None:
        """Download the small files below ``folder`` that match ``pattern`` (fnmatch), and delete others that do."""
        paths = self.listed(folder, pattern)
        with self.at(folder) as (system, _):
            names = {path: self._name(path) for path in paths}
            contents = system.cat(list(names.values()), on_error="return") if names else {}
            for data in contents.values():
                if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):  # deleted meanwhile
                    raise data
        for path, name in names.items():
            data = contents.get(name)
            if isinstance(data, bytes) and not (path.exists() and path.read_bytes() == data):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data)
        for path in set(folder.glob(pattern)).difference(paths):
            path.unlink(missing_ok=True)


_store = functools.cache(Store)


@contextlib.contextmanager
def _whole(system: Any, name: str) -> Iterator[str]:
    """Yield the name to write to, so that readers never see half a file: stores of objects see to that themselves."""
    if getattr(system, "local_file", False):
        with replacing(name) as temporary:
            yield str(temporary)
    else:
        yield name


def _entries(system: Any, folder: str, part: str, kind: str) -> list[str]:
    """Return the matching entries of a folder; unlike ``find``, this raises if the store does not answer."""
    try:
        listed = system.ls(folder, detail=True)
    except FileNotFoundError:
        return []
    names = (entry["name"].rstrip("/") for entry in listed if entry["type"] == kind)
    return [name for name in names if fnmatch(name.rpartition("/")[2], part) and name.strip("/") != folder.strip("/")]


def _relative(folder: str, name: str) -> str:
    return name.lstrip("/").removeprefix(folder.strip("/") + "/")
