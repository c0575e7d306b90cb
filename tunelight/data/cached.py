"""cached(): what a function loads is loaded once, kept between trials, and lies in memory once a node.

What the function returned is pickled into an anonymous file in memory (memfd), tensors and arrays as they are. Other
workers of the node map that file by way of the process that made it, so that nothing is left on a disk, and memory is
free once the last process that holds it has ended. Each call maps it anew, copy on write: a trial that changes what it
got changes it for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import mmap
import os
import pickle
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
"""How long a worker waits for another of its node that loads the same."""
_POLL_S = 0.2
_ALIGNED = 64
_NAME = "tunelight-"


@dataclass(frozen=True)
class _Kept:
    """What one call returned: a file in memory, how long it is, and where its parts are."""

    file: int
    size: int

    def close(self) -> None:
        os.close(self.file)  # what is mapped stays until nobody uses it


class _Store:
    """What this process holds, the least used first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, _Kept] = OrderedDict()

    def find(self, key: str) -> _Kept | None:
        """Return what this process holds under a key, and count that as a use."""
        if key in self.kept:
            self.kept.move_to_end(key)
        return self.kept.get(key)

    def keep(self, key: str, one: _Kept, most: int) -> None:
        """Hold one more; let go of the least used while all are more than ``most`` bytes."""
        self.kept[key] = one
        while len(self.kept) > 1 and sum(each.size for each in self.kept.values()) > most:
            self.kept.popitem(last=False)[1].close()

    def clear(self) -> None:
        """Let go of everything."""
        while self.kept:
            self.kept.popitem()[1].close()


_store = _Store()


def clear_cache() -> None:
    """Let go of all that this process has cached."""
    _store.clear()


@overload
def cached(function: Callable[P, T], *, max_bytes: int | None = None) -> Callable[P, T]: ...
@overload
def cached(function: None = None, *, max_bytes: int | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def cached(function: Any = None, *, max_bytes: int | None = None) -> Any:
    """Return ``function`` with a memory: the same call is carried out once a node, whichever trial or worker makes it.

    ``load = tl.cached(load_images)``, or ``@tl.cached`` above the function. What it returns is kept by the warm workers
    between trials, for the function's name and source, what it captured, and its arguments; not for what it reads:
    where a file changes, pass its date as an argument. Tensors and arrays lie in memory once for all workers of a node.
    Each call returns an object of its own: changes in place are the caller's alone.

    Args:
        function: returns what can be pickled. It is loaded by one worker while others of the node wait for it.
        max_bytes: how much a process keeps of all functions; beyond that it lets go of what was least used (None: a
            quarter of the machine's memory).

    Runs on: worker, driver (which keeps it for itself). Raises: DataError where arguments or result cannot be pickled,
    another worker takes longer than an hour, or ``function`` is none; what ``function`` raises.
    """
    if function is None:
        return functools.partial(cached, max_bytes=max_bytes)
    if not callable(function):
        raise DataError(f"cached() takes the function that loads, not what it loaded: {type(function).__name__}.")

    @functools.wraps(function)
    def remembering(*args: Any, **kwargs: Any) -> Any:
        key = _key(function, args, kwargs)
        most = _quarter() if max_bytes is None else max_bytes
        kept = _store.find(key)
        if kept is None:
            kept = _shared(key, lambda: _written(function, function(*args, **kwargs), key))
            _store.keep(key, kept, most)
        return _read(kept)

    return remembering


def _quarter() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


# --- which call -------------------------------------------------------------------------------------------


def _key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    import cloudpickle  # only those wait who use it

    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    code = getattr(plain, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    name = f"{getattr(plain, '__module__', '')}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"
    try:
        told = cloudpickle.dumps((cells, sorted(bound.arguments.items()), getattr(plain, "__self__", None)), protocol=5)
    except Exception as error:
        raise DataError(
            f"tl.cached({name}) cannot tell this call from others, for what it is given cannot be pickled: {error}. "
            "Give it plain arguments: a path, numbers, texts."
        ) from error
    digest = hashlib.sha256(f"{name}\n".encode())
    for part in _code(code) if code is not None else ():
        digest.update(part)
    digest.update(told)
    return digest.hexdigest()[:32]


def _code(code: CodeType) -> Iterator[bytes]:
    """Yield what a function's code does, without where it stands."""
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif not isinstance(constant, frozenset):  # its order is another one in each process
            yield repr(constant).encode()


# --- once a node ------------------------------------------------------------------------------------------


def _shared(key: str, make: Callable[[], _Kept]) -> _Kept:
    """Return what another process of this node has under a key, else make it while they wait."""
    named = os.environ.get(CACHE_VARIABLE)
    if named is None:
        return make()
    folder = Path(named)
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
                    f"Waited {_LOAD_LIMIT_S:.0f} s for another worker of this node that loads the same, in vain."
                ) from None
    try:
        place = folder / key
        found = _opened(place, key)
        told = "a"
        if found is None:
            found, told = make(), "w"
        with place.open(told) as file:
            print(os.getpid(), found.file, found.size, file=file)
        return found
    finally:
        lock.release()


def _opened(place: Path, key: str) -> _Kept | None:
    """Return the file in memory that other processes told of; None where none of them holds it any more."""
    try:
        lines = place.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        with contextlib.suppress(OSError, ValueError):
            process, number, size = map(int, line.split())
            link = f"/proc/{process}/fd/{number}"
            named = os.readlink(link)  # noqa: PTH115 - its text names no path
            if named.startswith(f"/memfd:{_NAME}{key}"):  # else the number is another file's by now
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
            f"tl.cached({name}) cannot keep what it returned ({type(value).__name__}), for it cannot be pickled: "
            f"{error}. Return tensors, arrays, or datasets of them."
        ) from error
    parts = [*packed.storages, *packed.buffers]
    head = pickle.dumps((packed.data, len(packed.storages), [part.nbytes for part in parts]))
    file = os.memfd_create(f"{_NAME}{key}")
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


def _read(kept: _Kept) -> Any:
    """Return the value, its tensors and arrays lying in a mapping of their own, copy on write."""
    from tunelight.lightning.transfer import Packed, unpack_view  # imports torch

    whole = np.frombuffer(mmap.mmap(kept.file, kept.size, access=mmap.ACCESS_COPY), np.uint8)
    at = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    data, storages, sizes = pickle.loads(whole[8:at].tobytes())  # noqa: S301 - written by a process of this user
    parts = []
    for size in sizes:
        at += -at % _ALIGNED
        parts.append(whole[at : at + size])
        at += size
    return unpack_view(Packed(data, parts[:storages], parts[storages:]))
