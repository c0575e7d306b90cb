"""Atomic writes: a reader of a file sees all of it or none of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file beside ``path``, which replaces it at the end, or is deleted on an error."""
    target = Path(path)
    temporary = _beside(target)
    try:
        yield temporary
        os.replace(temporary, target)  # noqa: PTH105 - the atomic step, by its own name
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def create_atomically(path: Path, data: bytes) -> bool:
    """Write a file that is on the disk then; False if it exists. Of several processes one succeeds. Raises: OSError."""
    temporary = _beside(path)
    write_atomically(temporary, data, sync=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return temporary.stat().st_nlink > 1  # NFS may ask again for what it has done (open(2), O_EXCL)
    except OSError:  # a file system without links
        try:
            with path.open("xb") as stream:
                stream.write(data)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def write_atomically(path: str | os.PathLike[str], data: str | bytes | memoryview, *, sync: bool = False) -> None:
    """Write a file. Several processes may write the same one; the last to finish wins.

    Args:
        path: the file. data: bytes, or text, which is encoded as UTF-8.
        sync: return only once the data is on the disk, so that it survives a power failure.

    Raises: OSError; the file is as it was before.
    """
    with replacing(path) as temporary, temporary.open("wb") as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
        if sync:
            stream.flush()
            sync_file(stream.fileno())


def sync_file(file: int) -> None:
    """Return once an open file's data is on the disk, where the file system can tell. Raises: OSError: it is not.

    Some systems that write behind (NFS) tell only here that a disk or a quota is full.
    """
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
