"""Which paths belong to object stores: URLs of storages, and the working folders in which each node has their files."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath
from typing import Any, Final

from tunelight.errors import SettingsError, guess
from tunelight.stores.masking import masked

FOLDER: Final = "tunelight-stores"
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
ODD: Final = re.compile(r"[@*?\[\]]")
_PLAIN: Final = frozenset({"file"})
"""Protocols of plain folders, which need no store."""


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
        kind_of(protocol)
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
    root = str(kind_of(protocol)._strip_protocol(text))
    if protocol in _PLAIN:
        return Path(root)
    return _cache() / FOLDER / protocol / root.strip("/")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()


def split(path: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """Return protocol and name, in parts, of the object that a path stands for; None for a path in no store.

    A folder called ``FOLDER`` counts only if a protocol follows: else it is a user's own.
    """
    if FOLDER not in os.fspath(path) or FOLDER not in (parts := Path(path).parts)[:-1]:
        return None
    import fsspec  # who has a folder need not wait for it

    known = set(fsspec.available_protocols()) - _PLAIN
    for index, part in enumerate(parts[:-1]):
        if part == FOLDER and parts[index + 1] in known:
            return parts[index + 1 :]
    return None


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise SettingsError for a user's folder that would be taken for the working folder of a store."""
    folder = Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path's own raises where there is no such user
    if split(folder) is not None and not folder.is_relative_to(_cache() / FOLDER):
        raise SettingsError(
            f"storage={os.fspath(path)!r} would be taken for {shown(folder)}: in folders called {FOLDER}/PROTOCOL "
            "tunelight keeps what belongs to object stores. Give that URL if you mean the store, else choose another "
            "folder."
        )


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path for messages: as its URL, if it stands for an object."""
    parts = split(path)
    if parts is None:
        return os.fspath(path)
    protocol, *rest = parts
    return f"{protocol}://{root_of(protocol)}{'/'.join(rest)}"


def kind_of(protocol: str) -> Any:
    """Return fsspec's class for a protocol. Raises: ImportError where its package is missing."""
    import fsspec

    return fsspec.get_filesystem_class(protocol)


def root_of(protocol: str) -> str:
    """Return what the names of objects begin with."""
    try:
        return str(kind_of(protocol).root_marker)
    except (ImportError, ValueError):
        return ""
