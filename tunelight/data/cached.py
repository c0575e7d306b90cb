"""cached(): a function's result is computed once a node, kept between trials, and shared in memory by its workers.

joblib writes the result into an anonymous file in memory (memfd), which other workers of the node open through /proc of
a process that holds it: nothing is left on a disk, and the memory is free when the last of them ends. macOS has no such
files: there each worker loads for itself, once.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import IO, Any, ParamSpec, TypeVar

import joblib  # type: ignore[import-untyped]
from joblib.hashing import NumpyHasher  # type: ignore[import-untyped]

from tunelight.errors import DataError
from tunelight.gang.parcel import pack, unpack_view
from tunelight.messages import CACHE_VARIABLE
from tunelight.settings.pickling import captured

P = ParamSpec("P")
T = TypeVar("T")
_LOAD_LIMIT_S = 3600.0
_kept: OrderedDict[str, IO[bytes]] = OrderedDict()
"""The files that this process holds, by call, the least recently used first."""


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` with a cache: equal calls run once a node, whichever trial or worker makes them.

    ``load = tl.cached(load_images)``, or ``@tl.cached`` above the function. Calls are equal by the function's code, its
    arguments, and the variables that it captures or reads, not by files: pass the date of a file that may change.
    Each call returns an object of its own; the memory of tensors and arrays is shared until it is changed. A process
    keeps as much as a quarter of the machine's memory, and drops the least recently used.

    Runs on: worker, driver (which shares with no other process). Raises: DataError if arguments or result cannot be
    pickled, if another worker takes longer than an hour, or if ``function`` is not callable; whatever it raises itself.
    """
    if not callable(function):
        raise DataError(f"cached() takes the function that loads, not what it loaded: {type(function).__name__}.")

    @functools.wraps(function)
    def cached_call(*args: P.args, **kwargs: P.kwargs) -> T:
        key = _key(function, args, kwargs)
        if key not in _kept:
            _kept[key] = _shared(key, lambda: _written(function(*args, **kwargs), key))
        _kept.move_to_end(key)
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
        while len(_kept) > 1 and sum(os.fstat(file.fileno()).st_size for file in _kept.values()) > most:
            _kept.popitem(last=False)[1].close()  # existing mappings of it stay valid
        return unpack_view(joblib.load(_path(_kept[key]), mmap_mode="c"))  # type: ignore[no-any-return]

    return cached_call


def _key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    call = type(function).__call__
    try:
        told = (function, call if isinstance(call, FunctionType) else None, sorted(bound.arguments.items()))
        return str(_Hasher(getattr(function, "__module__", "")).hash(told))
    except Exception as error:
        raise DataError(
            f"tl.cached cannot tell this call from others, since its arguments cannot be pickled: {error}. Give it a "
            "path, numbers, texts."
        ) from error


class _Hasher(NumpyHasher):  # type: ignore[misc]  # joblib ships no types
    """joblib's hash, which knows functions by their code, and those of a script or of ``module`` by their variables."""

    def __init__(self, module: str, seen: tuple[FunctionType, ...] = ()) -> None:
        super().__init__("sha1")
        self._module, self._seen = module, seen

    def save(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            value = (value.__module__, value.__qualname__, value.__code__, self._captured(value))
        elif isinstance(value, MethodType):
            value = (value.__func__, value.__self__)
        elif isinstance(value, CodeType):
            value = (value.co_code, value.co_names, value.co_consts)
        elif isinstance(value, frozenset):
            value = ("frozenset", set(value))  # joblib sorts sets alone
        elif isinstance(value, type | ModuleType):
            value = (
                type(value).__name__,
                getattr(value, "__module__", ""),
                getattr(value, "__qualname__", value.__name__),
            )
        super().save(value)

    def _captured(self, function: FunctionType) -> list[tuple[str, str]]:
        found = []
        own = function.__module__ in (self._module, "__main__") or "<" in function.__qualname__
        for label, part in captured(function) if own and not any(function is one for one in self._seen) else ():
            try:
                found.append((label, _Hasher(self._module, (*self._seen, function)).hash(part)))
            except Exception:
                if not label.startswith("global"):
                    raise
                found.append((label, type(part).__qualname__))  # a lock, say, which is no data
        return found


def _shared(key: str, make: Callable[[], IO[bytes]]) -> IO[bytes]:
    """Return another process's file for a key, else make it while others of this node wait."""
    if CACHE_VARIABLE not in os.environ:
        return make()
    from filelock import FileLock, Timeout  # it comes with torch

    folder = Path(os.environ[CACHE_VARIABLE])
    file: IO[bytes] | None = None
    folder.mkdir(parents=True, exist_ok=True)
    holders = folder / key
    try:
        lock = FileLock(folder / f"{key}.lock").acquire(timeout=_LOAD_LIMIT_S)
    except Timeout:
        raise DataError(f"Another worker of this node has loaded the same for {_LOAD_LIMIT_S:.0f} s.") from None
    with lock:
        for path in holders.read_text().splitlines() if holders.exists() else ():
            with suppress(OSError):
                if file is None and os.readlink(path).startswith(f"/memfd:tunelight-{key}"):  # noqa: PTH115 - no path
                    file = open(path, "rb")  # noqa: SIM115, PTH123 - held until it is dropped
        with holders.open("w" if file is None else "a") as out:
            file = file or make()
            print(_path(file), file=out)
    return file


def _written(value: Any, key: str) -> IO[bytes]:
    try:
        packed = pack(value)
    except Exception as error:
        kind = type(value).__name__
        raise DataError(f"tl.cached cannot keep a result that cannot be pickled ({kind}): {error}.") from error
    memory = getattr(os, "memfd_create", None)
    new: Any = os.fdopen(memory(f"tunelight-{key}"), "w+b") if memory else tempfile.NamedTemporaryFile()  # noqa: SIM115
    joblib.dump(packed, new)
    new.flush()
    return new  # type: ignore[no-any-return]


def _path(file: IO[bytes]) -> str:
    """Return the path by which processes of this user open a file."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}" if hasattr(os, "memfd_create") else file.name
