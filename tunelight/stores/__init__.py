"""Sweeps in object stores (``s3://``, ``gs://``, whatever fsspec knows): files here, objects there.

A sweep in a store has a working folder on every node, ``.../tunelight-stores/PROTOCOL/BUCKET/...``. A path in it says
by itself which object it stands for, so that nothing but paths is passed on, and code that knows folders goes on to
work. What is small and has to be the same for all is read from the store and written to it; a large file is pushed once
it is finished, and fetched where it is opened. Of any other path, these functions do to the file itself what they say.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from tunelight.errors import SettingsError, guess

FOLDER: Final = "tunelight-stores"
FETCH_LIMIT_S: Final = 1800.0
"""How long a process waits while another one of its node fetches the same file."""
_POLL_S: Final = 0.2
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
ODD: Final = re.compile(r"[@*?\[\]]")
_PLAIN: Final = frozenset({"file"})
"""Protocols of folders that every node sees: those need no store."""

F = TypeVar("F", bound=Callable[..., Any])


def _as_os_error(function: F) -> F:
    """Have a store's failure raised as OSError, whatever its library calls it: that storage fails is provided for."""

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
    """Raise SettingsError for a URL that can be no storage. Asks no network."""
    import fsspec  # noqa: PLC0415 - who has a folder need not wait for it

    protocol, _, rest = url.partition("://")
    protocol = protocol.lower()
    known = fsspec.available_protocols()
    if protocol not in known:
        raise SettingsError(
            f"storage={url!r}: nothing here knows {protocol}://.{guess(protocol, known)} A storage is a folder, or an "
            "object store such as s3://bucket/sweeps or gs://bucket/sweeps."
        )
    if protocol == "memory":
        raise SettingsError(
            f"storage={url!r} lies in the memory of one process, and a sweep has many. Give a folder, or a store that "
            "all nodes reach."
        )
    if "::" in url or ODD.search(rest) or ".." in PurePath(rest).parts or not rest.strip("/"):
        raise SettingsError(
            f"storage={_masked(url)!r} must be protocol://bucket/folder, without any of @ * ? [ ]. Credentials belong "
            "into the environment (AWS_PROFILE, AWS_ENDPOINT_URL, ...), since a sweep records its storage."
        )
    try:
        _kind(protocol)
    except ImportError as error:
        raise SettingsError(f"storage={url!r} cannot be used here: {error}. Every node needs it.") from error


def _masked(url: str) -> str:
    return re.sub(r"://[^/]*@", "://***@", url)


def working(given: str | os.PathLike[str]) -> Path:
    """Return the path that stands for a storage, a sweep or a file: of a URL, that in the working folder.

    Raises: SettingsError for a URL that can be no storage.
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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    return cache / FOLDER / protocol / root.strip("/")


def inside(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is in the working folder of a store."""
    return FOLDER in Path(path).parts


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as a person knows it: by its URL, if it stands for an object."""
    parts = Path(path).parts
    if FOLDER not in parts[:-1]:
        return os.fspath(path)
    protocol, *rest = parts[parts.index(FOLDER) + 1 :]
    return f"{protocol}://{_marker(protocol)}{'/'.join(rest)}"


def _kind(protocol: str) -> Any:
    import fsspec  # noqa: PLC0415

    return fsspec.get_filesystem_class(protocol)


def _marker(protocol: str) -> str:
    try:
        return str(_kind(protocol).root_marker)
    except (ImportError, ValueError):
        return ""


@functools.cache
def _filesystem(protocol: str) -> Any:
    import fsspec  # noqa: PLC0415

    return fsspec.filesystem(protocol, **({"auto_mkdir": True} if protocol == "local" else {}))


def located(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system that an object is in, and its name there; what was listed before counts no more."""
    parts = Path(path).parts
    protocol, *rest = parts[parts.index(FOLDER) + 1 :]
    system = _filesystem(protocol)
    system.invalidate_cache()
    return system, _marker(protocol) + "/".join(rest)


# --- what is small: read and written there ----------------------------------------------------------------


@_as_os_error
def stat(path: Path) -> tuple[int, float] | None:
    """Return size (bytes; of a folder, that of its objects) and time of an object; None where there is none."""
    system, name = located(path)
    try:
        found = system.info(name)
    except FileNotFoundError:
        return None
    if found["type"] == "directory":
        sizes = [one["size"] for one in system.find(name, detail=True).values()]
        return (sum(sizes), 0.0) if sizes else None
    modified = found.get("LastModified")  # of S3's; others are asked
    return int(found["size"]), float((modified or system.modified(name)).timestamp())


def exists(path: Path) -> bool:
    """Tell whether a file, or the object that it stands for, is there. Raises: OSError where a store does not say."""
    return stat(path) is not None if inside(path) else os.path.exists(path)  # noqa: PTH110 - Path's own may raise


@_as_os_error
def read(path: Path) -> bytes:
    """Return what a file holds. Raises: OSError."""
    if not inside(path):
        return path.read_bytes()
    system, name = located(path)
    return bytes(system.cat_file(name))


@_as_os_error
def write(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it. Raises: OSError."""
    if inside(path):
        system, name = located(path)
        with _whole(system, name) as draft:
            system.pipe_file(draft, data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)  # noqa: PTH105 - the atomic step, by its own name


@contextlib.contextmanager
def _whole(system: Any, name: str) -> Iterator[str]:
    """Yield the name to write to: an object appears whole, a file of a file system only by being renamed."""
    if getattr(system, "local_file", False):
        draft = f"{name}.{os.getpid()}.tmp"
        yield draft
        os.replace(draft, name)  # noqa: PTH105
    else:
        yield name


@_as_os_error
def texts(folder: Path, pattern: str) -> dict[Path, bytes]:
    """Return what the files below ``folder`` hold whose relative path fits ``pattern`` (fnmatch), by name."""
    found = matching(folder, pattern)
    if not inside(folder):
        held = {}
        for path in found:
            with contextlib.suppress(OSError):  # deleted meanwhile, or no file
                held[path] = path.read_bytes()
        return held
    names = {path: located(path)[1] for path in found}
    read_at_once = located(folder)[0].cat(list(names.values()), on_error="omit") if names else {}
    return {path: read_at_once[name] for path, name in names.items() if name in read_at_once}


@_as_os_error
def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files below ``folder`` whose relative path fits ``pattern`` (fnmatch), by name."""
    if not inside(folder):
        return sorted(folder.glob(pattern))
    system, name = located(folder)
    depth = pattern.count("/") + 1
    inner = _inner(name, system.find(name, maxdepth=depth))
    return [folder / one for one in sorted(inner) if fnmatch(one, pattern) and one.count("/") == depth - 1]


def _inner(name: str, found: Iterable[str]) -> list[str]:
    """Return names of objects in the folder ``name`` as they are inside it."""
    root = name.strip("/") + "/"
    return [one.lstrip("/").removeprefix(root) for one in found]


@_as_os_error
def holds_any(folder: Path) -> bool:
    """Tell whether there is anything in a store's folder."""
    system, name = located(folder)
    return bool(system.find(name))


@_as_os_error
def claim(path: Path) -> bool:
    """Make an empty object; False where there is one (as far as the store can tell)."""
    system, name = located(path)
    if stat(path) is not None:
        return False
    try:
        system.pipe_file(name, b"", mode="create")
    except FileExistsError:
        return False
    except (NotImplementedError, TypeError, ValueError):  # an older library knows no such mode
        system.pipe_file(name, b"")
    return True


@_as_os_error
def drop(path: Path) -> None:
    """Delete a file or a folder, here and in its store; nothing happens where there is none."""
    if inside(path):
        system, name = located(path)
        with contextlib.suppress(FileNotFoundError):
            system.rm(name, recursive=True)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- what is large: pushed when it is finished, fetched where it is opened --------------------------------


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


@_as_os_error
def push(path: Path) -> None:
    """Bring a file, or all files of a folder, into the store that ``path`` belongs to; nothing without one."""
    if not inside(path):
        return
    system, name = located(path)
    for file in _files(path):
        target = name if file == path else f"{name}/{file.relative_to(path).as_posix()}"
        with _whole(system, target) as draft:
            system.put_file(str(file), draft)


@_as_os_error
def push_changed(folder: Path, since: float, wanted: Callable[[str], bool]) -> None:
    """Push the files of a folder whose relative path is ``wanted``: those of another size there, or written ``since``.

    Hidden ones stay here. Processes of a node take turns.
    """
    with _alone(folder):
        system, name = located(folder)
        there = system.find(name, detail=True)
        sizes = dict(zip(_inner(name, there), (one["size"] for one in there.values()), strict=True))
        for file in _files(folder):
            inner = file.relative_to(folder)
            hidden = any(part.startswith(".") for part in inner.parts)
            found = file.stat()
            known = sizes.get(inner.as_posix()) == found.st_size and found.st_mtime < since
            if not hidden and not known and wanted(inner.as_posix()):
                push(file)


@_as_os_error
def fetch_longer(path: Path) -> None:
    """Fetch a file that grows, where that in the store is longer than what is here."""
    if inside(path) and (there := stat(path)) is not None:
        size = there[0]
        fetch(path, lambda here: here.stat().st_size >= size)


@_as_os_error
def fetch(path: Path, whole: Callable[[Path], bool]) -> Path:
    """Have a file or folder of a store here: what is here already, if it is ``whole``, or else fetched once a node.

    Raises: FileNotFoundError; OSError where what was fetched is not whole; TimeoutError.
    """
    if not inside(path):
        return path
    with _alone(path):
        if path.exists() and whole(path):
            return path
        system, name = located(path)
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
    for inner in _inner(name, system.find(name)):
        (draft / inner).parent.mkdir(parents=True, exist_ok=True)
        system.get_file(f"{name}/{inner}", str(draft / inner))


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process of this node at a time fetch a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + FETCH_LIMIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{shown(path)} was not fetched within {FETCH_LIMIT_S:.0f} s by another process of this node. "
                        "Is the store slow, or gone?"
                    ) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(file)


def forget(path: Path) -> None:
    """Delete a file or a folder of a store here alone."""
    if inside(path):
        _clear(path)


def forget_others(path: Path) -> None:
    """Delete, here alone, what lies beside a file that was pushed: its store has it, and no node need hold it twice."""
    if inside(path):
        for other in path.parent.glob("*report-*"):
            if other != path and other.name.startswith(("report-", ".report-")) and other.suffix in (".ckpt", ".tmp"):
                with contextlib.suppress(OSError):
                    _clear(other)
