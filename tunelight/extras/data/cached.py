"""cached(): a function's result is computed once a node, kept between trials, and shared in memory by its workers.

joblib writes it into an anonymous file in memory (memfd), which other workers of the node find in /proc, and which ends
with the last of them. On macOS, which has no such files, each worker loads for itself, once.
"""

from __future__ import annotations

import functools
import glob
import inspect
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import IO, Any, ParamSpec, TypeVar

import joblib  # type: ignore[import-untyped]
from filelock import FileLock, Timeout
from joblib.hashing import NumpyHasher  # type: ignore[import-untyped]

from tunelight.errors import DataError
from tunelight.gang.parcel import pack, unpack_view
from tunelight.messages import CACHE_VARIABLE
from tunelight.settings.code import captured

P = ParamSpec("P")
T = TypeVar("T")
_kept: OrderedDict[str, IO[bytes]] = OrderedDict()  # the files of this process, by call, the last used last


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` with a cache: equal calls run once a node, whichever trial or worker makes them.

    Calls are equal by the function's code, its arguments, and the variables that it captures or reads, not by files:
    pass the date of a file that may change. Each call returns an object of its own; the memory of tensors and arrays is
    shared until it is changed. A process keeps up to a quarter of the machine's memory, the most recently used.

    Runs on: worker, driver (which shares with no other process). Raises: DataError for what is not callable or cannot
    be pickled, or where another worker takes longer than an hour; what ``function`` raises.
    """
    if not callable(function):
        raise DataError(f"cached() takes the function that loads, not what it loaded: {type(function).__name__}.")

    @functools.wraps(function)
    def cached_call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        facts = (os.environ.get(CACHE_VARIABLE), function.__call__, sorted(bound.arguments.items()))  # type: ignore[operator]
        try:
            key = str(_Hasher(getattr(function, "__module__", "")).hash(facts))
        except Exception as error:
            what = "tl.cached cannot tell this call from others, since its arguments cannot be pickled"
            raise DataError(f"{what}: {error}. Give it a path, numbers, texts.") from error
        if key not in _kept:
            _kept[key] = _file(key, lambda: function(*args, **kwargs))
        _kept.move_to_end(key)
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
        while len(_kept) > 1 and sum(os.fstat(file.fileno()).st_size for file in _kept.values()) > most:
            _kept.popitem(last=False)[1].close()  # existing mappings of it stay valid
        path = f"/proc/self/fd/{_kept[key].fileno()}" if hasattr(os, "memfd_create") else _kept[key].name
        return unpack_view(joblib.load(path, mmap_mode="c"))  # type: ignore[no-any-return]

    return cached_call


class _Hasher(NumpyHasher):  # type: ignore[misc]  # joblib ships no types
    """joblib's hash, which knows functions by their code, and those of a script or of ``module`` by their variables."""

    def __init__(self, module: str, *seen: FunctionType) -> None:
        super().__init__("sha1")
        self._module, self._seen = module, seen

    def save(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            value = (value.__module__, value.__qualname__, value.__code__, list(self._captured(value)))
        elif isinstance(value, MethodType):
            value = (value.__func__, value.__self__)
        elif isinstance(value, CodeType):
            value = (value.co_code, value.co_names, value.co_consts)
        elif isinstance(value, frozenset):
            value = ("frozenset", set(value))  # joblib sorts sets alone
        elif isinstance(value, type | ModuleType):
            value = [str(getattr(value, name, "")) for name in ("__class__", "__module__", "__qualname__", "__name__")]
        super().save(value)

    def _captured(self, function: FunctionType) -> Iterator[tuple[str, str]]:
        local = function.__module__ in (self._module, "__main__") or "<" in function.__qualname__
        for label, part in captured(function) if local and function not in self._seen else ():
            with suppress(Exception) if label.startswith("global") else nullcontext():  # a lock, say, which is no data
                yield label, _Hasher(self._module, *self._seen, function).hash(part)


def _file(key: str, load: Callable[[], object]) -> IO[bytes]:
    """Return a call's result in a file: a new one, or that of another process of this node, for which it waits."""
    with ExitStack() as turn:
        if folder := os.environ.get(CACHE_VARIABLE):
            Path(folder).mkdir(parents=True, exist_ok=True)
            try:
                turn.enter_context(FileLock(Path(folder, f"{key}.lock"), timeout=3600))
            except Timeout:
                raise DataError("Another worker of this node has loaded the same for an hour.") from None
            for path in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - it passes over processes that end meanwhile
                with suppress(OSError):
                    if str(Path(path).readlink()).startswith(f"/memfd:tunelight-{key}"):
                        return Path(path).open("rb")
        value = load()
        memory = getattr(os, "memfd_create", None)
        file: Any = os.fdopen(memory(f"tunelight-{key}"), "w+b") if memory else tempfile.NamedTemporaryFile()  # noqa: SIM115
        try:
            joblib.dump(pack(value), file)
            file.flush()
        except Exception as error:
            file.close()  # others would find it
            raise DataError(f"tl.cached cannot keep the result, of {type(value).__name__}: {error}.") from error
        return file  # type: ignore[no-any-return]
