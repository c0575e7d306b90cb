"""The objects that paths stand for, and small files: read from a store and written to it."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from tunelight.errors import SettingsError, guess
from tunelight.stores.atomic import replacing, write_atomically
from tunelight.stores.masking import masked

FOLDER: Final = "tunelight-stores"
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
ODD: Final = re.compile(r"[@*?\[\]]")
_PLAIN: Final = frozenset({"file"})
"""Protocols of plain folders, which need no store."""

F = TypeVar("F", bound=Callable[..., Any])


def as_os_error(function: F) -> F:
    """Raise errors of a store as OSError, whatever their class: callers handle that."""

    @functools.wraps(function)
    def checked(path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(path, *args, **kwargs)
        except (OSError, SettingsError):
            raise
        except Exception as error:
            text = f"{shown(path)}: {type(error).__name__}: {error}"
            raise OSError(errno.EIO, text) from error

    return checked  # type: ignore[return-value]


# --- URLs and working folders -----------------------------------------------------------------------------


def check(url: str) -> None:
    """Raise SettingsError for a URL that cannot be a storage. Does not use the network."""
    import fsspec  # who has a folder need not wait for it

    protocol, _, rest = url.partition("://")
    protocol = protocol.lower()
    known = fsspec.available_protocols()
    if protocol not in known:
        raise SettingsError(
            f"storage={_masked(url)!r}: nothing here knows {protocol}://.{guess(protocol, known)} A storage is a "
            "folder, or an object store such as s3://bucket/sweeps or gs://bucket/sweeps."
        )
    if protocol == "memory":
        raise SettingsError(
            f"storage={_masked(url)!r} lies in the memory of one process, and a sweep has many. Give a folder, or a "
            "store that all nodes reach."
        )
    if "::" in url or ODD.search(rest) or ".." in PurePath(rest).parts or not rest.strip("/"):
        raise SettingsError(
            f"storage={_masked(url)!r} must be protocol://bucket/folder, without any of @ * ? [ ]. Credentials belong "
            "into the environment (AWS_PROFILE, AWS_ENDPOINT_URL, ...), since a sweep records its storage."
        )
    try:
        _kind(protocol)
    except ImportError as error:
        raise SettingsError(f"storage={_masked(url)!r} cannot be used here: {error}. Every node needs it.") from error


def _masked(url: str) -> str:
    return re.sub(r"://[^/]*@", "://***@", masked(url))


def working(given: str | os.PathLike[str]) -> Path:
    """Return the path of a storage, a sweep or a file; for a URL, the path in the working folder.

    Raises: SettingsError for a URL that cannot be a storage.
    """
    text = os.fspath(given)
    found = _URL.fullmatch(text)
    if found is None:
        return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises where there is no such user
    check(text)
    protocol = found[1].lower()
    root = str(_kind(protocol)._strip_protocol(text))
    if protocol in _PLAIN:
        return Path(root)
    return _cache() / FOLDER / protocol / root.strip("/")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()


def _split(path: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """Return protocol and name, in parts, of the object that a path stands for; None for a path in no store.

    A folder called ``FOLDER`` counts only if a protocol follows: else it is a user's own.
    """
    parts = Path(path).parts
    if FOLDER not in parts[:-1]:
        return None
    import fsspec  # who has a folder need not wait for it

    known = set(fsspec.available_protocols()) - _PLAIN
    for index, part in enumerate(parts[:-1]):
        if part == FOLDER and parts[index + 1] in known:
            return parts[index + 1 :]
    return None


def inside(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is in the working folder of a store."""
    return _split(path) is not None


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise SettingsError for a user's folder that would be taken for the working folder of a store."""
    folder = Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path's own raises where there is no such user
    if inside(folder) and not folder.is_relative_to(_cache() / FOLDER):
        raise SettingsError(
            f"storage={os.fspath(path)!r} would be taken for {shown(folder)}: in folders called {FOLDER}/PROTOCOL "
            "tunelight keeps what belongs to object stores. Give that URL if you mean the store, else choose another "
            "folder."
        )


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path for messages: as its URL, if it stands for an object."""
    parts = _split(path)
    if parts is None:
        return os.fspath(path)
    protocol, *rest = parts
    return f"{protocol}://{_marker(protocol)}{'/'.join(rest)}"


def _kind(protocol: str) -> Any:
    import fsspec

    return fsspec.get_filesystem_class(protocol)


def _marker(protocol: str) -> str:
    try:
        return str(_kind(protocol).root_marker)
    except (ImportError, ValueError):
        return ""


@functools.cache
def _filesystem(protocol: str) -> Any:
    import fsspec

    options = {"use_listings_cache": False} if _kind(protocol).async_impl else {}
    return fsspec.filesystem(protocol, **options, **({"auto_mkdir": True} if protocol == "local" else {}))


def located(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of an object, without cached listings, and its name there."""
    parts = _split(path)
    if parts is None:
        raise ValueError(f"{os.fspath(path)} stands for no object in a store.")
    protocol, *rest = parts
    system = _filesystem(protocol)
    system.invalidate_cache()
    return system, _marker(protocol) + "/".join(rest)


# --- small files: read and written in the store ---------------------------------------------------------------


@as_os_error
def stat(path: Path) -> tuple[int, float] | None:
    """Return size (bytes; of a folder, that of its objects) and time of an object; None if there is none."""
    system, name = located(path)
    try:
        found = system.info(name)
    except FileNotFoundError:
        return None
    if found["type"] == "directory":
        sizes = [one["size"] for one in system.find(name, detail=True).values()]
        return (sum(sizes), 0.0) if sizes else None
    modified = found.get("LastModified")  # S3 has it; others are asked
    return int(found["size"]), float((modified or system.modified(name)).timestamp())


def exists(path: Path) -> bool:
    """Tell whether a file, or the object that it stands for, exists. Raises: OSError if a store does not answer."""
    return stat(path) is not None if inside(path) else os.path.exists(path)  # noqa: PTH110 - Path's own may raise


@as_os_error
def read(path: Path) -> bytes:
    """Return the contents of a file. Raises: OSError."""
    if not inside(path):
        return path.read_bytes()
    system, name = located(path)
    return bytes(system.cat_file(name))


@as_os_error
def write(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises: OSError."""
    if inside(path):
        system, name = located(path)
        with written_whole(system, name) as target:
            system.pipe_file(target, data)
    else:
        write_atomically(path, data)


@contextlib.contextmanager
def written_whole(system: Any, name: str) -> Iterator[str]:
    """Yield the name to write to, so that readers never see half a file: stores of objects see to that themselves."""
    if getattr(system, "local_file", False):
        with replacing(name) as temporary:
            yield str(temporary)
    else:
        yield name


@as_os_error
def texts(folder: Path, pattern: str) -> dict[Path, bytes]:
    """Return the contents of the files below ``folder`` whose relative path matches ``pattern`` (fnmatch), by path."""
    found = matching(folder, pattern)
    if not inside(folder):
        files = {}
        for path in found:
            with contextlib.suppress(OSError):  # deleted meanwhile, or no file
                files[path] = path.read_bytes()
        return files
    names = {path: located(path)[1] for path in found}
    held: dict[str, Any] = located(folder)[0].cat(list(names.values()), on_error="return") if names else {}
    for one in held.values():
        if isinstance(one, Exception) and not isinstance(one, FileNotFoundError):  # those were deleted meanwhile
            raise one
    return {path: held[name] for path, name in names.items() if isinstance(held.get(name), bytes)}


@as_os_error
def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files below ``folder`` whose relative path matches ``pattern`` (fnmatch), sorted."""
    if not inside(folder):
        return sorted(folder.glob(pattern))
    system, name = located(folder)
    *folders, last = pattern.split("/")
    names = [name]
    for part, kind in [*((one, "directory") for one in folders), (last, "file")]:
        names = [one for at in names for one in _listed(system, at, part, kind)]
    return [folder / one for one in sorted(inner_names(name, names))]


def _listed(system: Any, folder: str, part: str, kind: str) -> list[str]:
    """Return the matching entries of a folder; unlike ``find``, this raises if the store does not answer."""
    try:
        found = system.ls(folder, detail=True)
    except FileNotFoundError:
        return []
    fits = (one["name"].rstrip("/") for one in found if one["type"] == kind)
    return [one for one in fits if fnmatch(one.rpartition("/")[2], part) and one.strip("/") != folder.strip("/")]


def inner_names(name: str, found: Iterable[str]) -> list[str]:
    """Return names of objects relative to the folder ``name``."""
    root = name.strip("/") + "/"
    return [one.lstrip("/").removeprefix(root) for one in found]


@as_os_error
def holds_any(folder: Path) -> bool:
    """Tell whether a store's folder is not empty."""
    system, name = located(folder)
    return any(_listed(system, name, "*", kind) for kind in ("file", "directory"))


@as_os_error
def claim(path: Path) -> bool:
    """Create an empty object; False if it exists (as far as the store can tell)."""
    system, name = located(path)
    if stat(path) is not None:
        return False
    try:
        system.pipe_file(name, b"", mode="create")
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno != errno.ENOSYS:  # the store has no such mode
            raise
        system.pipe_file(name, b"")
    except (NotImplementedError, TypeError, ValueError):  # its library has none
        system.pipe_file(name, b"")
    return True


@as_os_error
def drop(path: Path) -> None:
    """Delete a file or a folder, here and in its store, if it exists."""
    drop_there(path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@as_os_error
def drop_there(path: Path) -> None:
    """Delete the object that a path stands for, only in its store; does nothing without a store."""
    if inside(path):
        system, name = located(path)
        with contextlib.suppress(FileNotFoundError):
            system.rm(name, recursive=True)
