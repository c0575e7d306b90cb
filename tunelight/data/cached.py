"""cached(): a function's result is computed once a node, kept between trials, and shared in memory by its workers.

The result is pickled into an anonymous file in memory (memfd), tensors and arrays as raw bytes. Other workers of the
node map that file through /proc of the process that made it, so that nothing is left on a disk, and the memory is freed
when the last process that holds it ends. Each call maps the file anew, copy on write: changes in place stay local.
macOS has no such files: there each worker loads for itself, once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import mmap
import os
import pickle
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from tunelight.errors import DataError
from tunelight.messages import CACHE_VARIABLE
from tunelight.session.session import current

P = ParamSpec("P")
T = TypeVar("T")

_LOAD_LIMIT_S = 3600.0
"""How long a worker waits for another one of its node that computes the same result."""
_POLL_S = 0.2
_ALIGNED = 64
_NAME = "tunelight-"


@dataclass(frozen=True)
class _Kept:
    """One call's result: a file in memory, and its size in bytes."""

    file: int
    size: int

    def close(self) -> None:
        os.close(self.file)  # existing mappings of it stay valid


class _Store:
    """The results that this process holds, the least recently used first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, _Kept] = OrderedDict()

    def find(self, key: str) -> _Kept | None:
        """Return the result under a key, and count that as a use."""
        if key in self.kept:
            self.kept.move_to_end(key)
        return self.kept.get(key)

    def keep(self, key: str, result: _Kept, max_bytes: int) -> None:
        """Add a result; drop the least recently used while all together exceed ``max_bytes``."""
        self.kept[key] = result
        while len(self.kept) > 1 and sum(kept.size for kept in self.kept.values()) > max_bytes:
            self.kept.popitem(last=False)[1].close()

    def clear(self) -> None:
        """Drop all results."""
        while self.kept:
            self.kept.popitem()[1].close()


_store = _Store()


def clear_cache() -> None:
    """Drop all that this process has cached."""
    _store.clear()


@overload
def cached(function: Callable[P, T], *, max_bytes: int | None = None) -> Callable[P, T]: ...
@overload
def cached(function: None = None, *, max_bytes: int | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def cached(function: Any = None, *, max_bytes: int | None = None) -> Any:
    """Return ``function`` with a cache: equal calls run once a node, whichever trial or worker makes them.

    ``load = tl.cached(load_images)``, or ``@tl.cached`` above the function. Warm workers keep results between trials. A
    result is found by the function's name and code, the variables it captured, and its arguments, not by the files it
    reads: if a file changes, pass its date as an argument. A node's workers share the memory of tensors and arrays.
    Each call returns an object of its own, which the caller may change in place.

    Args:
        function: returns something that can be pickled. One worker runs it while others of its node wait.
        max_bytes: how much a process keeps, of all functions together; it then drops the least recently used (None: a
            quarter of the machine's memory).

    Runs on: worker, driver (which shares with no other process). Raises: DataError if arguments or result cannot be
    pickled, if another worker takes longer than an hour, or if ``function`` is not callable; whatever it raises itself.
    """
    if function is None:
        return functools.partial(cached, max_bytes=max_bytes)
    if not callable(function):
        raise DataError(f"cached() takes the function that loads, not what it loaded: {type(function).__name__}.")

    @functools.wraps(function)
    def cached_call(*args: Any, **kwargs: Any) -> Any:
        key = _key(function, args, kwargs)
        limit = _quarter() if max_bytes is None else max_bytes
        kept = _store.find(key)
        if kept is None:
            kept = _shared(key, lambda: _written(function, function(*args, **kwargs), key))
            _store.keep(key, kept, limit)
        return _read(kept)

    return cached_call


def _quarter() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


# --- which call -------------------------------------------------------------------------------------------


def _key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    import cloudpickle  # only users of cached() pay for the import

    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    code = getattr(plain, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    name = f"{getattr(plain, '__module__', '')}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"
    try:
        owner = getattr(plain, "__self__", None)
        arguments = cloudpickle.dumps((cells, sorted(bound.arguments.items()), owner), protocol=5)
    except Exception as error:
        raise DataError(
            f"tl.cached({name}) cannot tell this call from others, since its arguments cannot be pickled: {error}. "
            "Give it plain arguments: a path, numbers, texts."
        ) from error
    digest = hashlib.sha256(f"{name}\n".encode())
    for part in _code(code) if code is not None else ():
        digest.update(part)
    digest.update(arguments)
    return digest.hexdigest()[:32]


def _code(code: CodeType) -> Iterator[bytes]:
    """Yield the parts of a function's code that say what it does, without file and line numbers."""
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif not isinstance(constant, frozenset):  # its order differs between processes
            yield repr(constant).encode()


# --- once a node ------------------------------------------------------------------------------------------


def _shared(key: str, make: Callable[[], _Kept]) -> _Kept:
    """Return another process's result for a key, else make it while others of this node wait."""
    configured = os.environ.get(CACHE_VARIABLE)
    if configured is None:
        return make()
    folder = Path(configured)
    from filelock import FileLock, Timeout  # it comes with torch

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{key}.lock")
    waited = 0.0
    while True:
        try:
            lock.acquire(timeout=_POLL_S)
            break
        except Timeout:
            waited += _POLL_S
            session = current()
            if session is not None and session.shared is not None:
                session.shared.check()
            if waited >= _LOAD_LIMIT_S:
                raise DataError(
                    f"Waited {_LOAD_LIMIT_S:.0f} s, in vain, for another worker of this node that loads the same."
                ) from None
    try:
        place = folder / key
        kept = _opened(place, key)
        mode = "a"
        if kept is None:
            kept, mode = make(), "w"
        with place.open(mode) as file:
            print(os.getpid(), kept.file, kept.size, file=file)
        return kept
    finally:
        lock.release()


def _opened(place: Path, key: str) -> _Kept | None:
    """Return the file in memory that other processes have listed; None if none of them holds it any more."""
    try:
        lines = place.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        with contextlib.suppress(OSError, ValueError):
            process, number, size = map(int, line.split())
            link = f"/proc/{process}/fd/{number}"
            target = os.readlink(link)  # noqa: PTH115 - its text names no path
            if target.startswith(f"/memfd:{_NAME}{key}"):  # else the descriptor was reused for another file
                return _Kept(os.open(link, os.O_RDWR | os.O_CLOEXEC), size)
    return None


# --- a value in a file ------------------------------------------------------------------------------------


def _written(function: Any, value: Any, key: str) -> _Kept:
    from tunelight.lightning.transfer import pack  # imports torch

    try:
        packed = pack(value)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise DataError(
            f"tl.cached({name}) cannot keep its result ({type(value).__name__}), which cannot be pickled: "
            f"{error}. Return tensors, arrays, or datasets of them."
        ) from error
    parts = [*packed.storages, *packed.buffers]
    head = pickle.dumps((packed.data, len(packed.storages), [part.nbytes for part in parts]))
    file = _file_in_memory(f"{_NAME}{key}")
    try:
        size = 8 + len(head)
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(len(head).to_bytes(8, "little") + head)
            for part in parts:
                gap = -size % _ALIGNED
                out.write(b"\0" * gap)
                out.write(part.data)
                size += gap + part.nbytes
    except BaseException:
        os.close(file)
        raise
    return _Kept(file, size)


def _file_in_memory(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    # macOS has neither this nor /proc, through which other workers would find it: each loads for itself there.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _read(kept: _Kept) -> Any:
    """Return the value, with tensors and arrays in a mapping of its own, copy on write."""
    from tunelight.lightning.transfer import Packed, unpack_view  # imports torch

    content = np.frombuffer(mmap.mmap(kept.file, kept.size, access=mmap.ACCESS_COPY), np.uint8)
    at = 8 + int.from_bytes(content[:8].tobytes(), "little")
    data, storages, sizes = pickle.loads(content[8:at].tobytes())  # noqa: S301 - written by a process of this user
    parts = []
    for size in sizes:
        at += -at % _ALIGNED
        parts.append(content[at : at + size])
        at += size
    return unpack_view(Packed(data, parts[:storages], parts[storages:]))
