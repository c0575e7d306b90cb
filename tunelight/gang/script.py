"""The driver's script as ``__main__`` of a worker, and of the processes that training code starts there.

Functions and classes of a script are sent by value, since a worker cannot import ``__main__``. What pickles them by
name then, as multiprocessing, ``torch.save`` and most caches do, finds them where plain Python would: in the module
``__main__`` of this process. A forked process inherits that; one that is spawned gets it by multiprocessing's
preparation data, in place of the script, which it would run again.
"""

from __future__ import annotations

import multiprocessing.spawn
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import cloudpickle

_names: Mapping[str, Any] = {}
_before: list[ModuleType] = []
"""The modules that were ``__main__``: code of theirs may still run."""


def play(names: Mapping[str, Any]) -> None:
    """Let ``__main__`` of this process hold ``names``, until `end`. Runs on: worker, or a process of a worker's."""
    global _names  # noqa: PLW0603 - as sys.modules is
    end()
    _names = names
    _before.append(sys.modules["__main__"])
    main = ModuleType("__main__")
    vars(main).update(names)
    sys.modules["__main__"] = main
    if multiprocessing.spawn.get_preparation_data is not _prepared:
        multiprocessing.spawn.get_preparation_data = _prepared


def end() -> None:
    """Give ``__main__`` of this process back."""
    global _names  # noqa: PLW0603 - as sys.modules is
    _names = {}
    if _before:
        sys.modules["__main__"] = _before.pop()


_prepared_by_python: Callable[[str], dict[str, Any]] = multiprocessing.spawn.get_preparation_data


def _prepared(name: str) -> dict[str, Any]:
    """Return what multiprocessing sends to a process before its work: the script's names instead of a file to run."""
    data = _prepared_by_python(name)
    if not _names:
        return data
    for key in ("init_main_from_name", "init_main_from_path"):
        data.pop(key, None)
    # Unpickled in this order, and before multiprocessing sets sys.path.
    return {"sys_path of tunelight": _Path(), "names of tunelight": _Names(), **data}


class _Path:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import sys; sys.path[:] = {sys.path!r}",)


class _Names:
    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _play, (cloudpickle.dumps(dict(_names)),)
        except Exception:  # noqa: BLE001 - a function's global may hold a lock by now, and another one is asked for
            return _play, (cloudpickle.dumps({name: value for name, value in _names.items() if _pickles(value)}),)


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever pickling raises
        return False
    return True


def _play(names: bytes) -> None:
    play(cloudpickle.loads(names))
