"""Which package of Lightning a sweep's code is written with: ``pytorch_lightning`` or ``lightning.pytorch``.

Neither of them is imported here. What the code names itself decides, then what the packages that it names were
written with, then what this process has imported.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement

from tunelight.compat import lightning
from tunelight.compat.lightning import ALIKE, HOW_TO_CHOOSE, Flavour, flavour_of, flavour_of_module
from tunelight.errors import TrainFunctionError
from tunelight.settings.code import captured, imports, parts_of

_MOST_VALUES = 5000
"""How many values are looked at: data that a function takes along may have millions."""
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, bytearray)
_NEUTRAL: Final = frozenset(
    {"", "builtins", "numpy", "pandas", "ray", "sklearn", "torch", "torchmetrics", "torchvision", "tunelight"}
)
"""Packages that many use and that say nothing about the flavour."""


def find_flavour(code: Mapping[str, Any]) -> Flavour:
    """Return the flavour of Lightning that some code trains with.

    Args:
        code: functions, classes, arguments and lists of them, by the names that errors give them.

    Raises: SettingsError where the code uses another flavour than this process, or the package is not installed;
    TrainFunctionError where it uses both and the user has not chosen.
    """
    found: dict[Flavour, str] = {}
    packages: set[str] = set()
    visited: dict[int, Any] = {}
    for what, value in code.items():
        for module, name in _used(value, visited):
            if (flavour := flavour_of_module(module)) is not None:
                found.setdefault(flavour, f"{what} uses {name}")
            packages.add(module.partition(".")[0])
    uses = " and ".join(found.values())
    decided = lightning.check_decided(found, uses)
    if len(found) > 1 and lightning.asked() is None:
        raise TrainFunctionError(
            f"{uses}. {ALIKE} Import the same one in all of this code, or choose: {HOW_TO_CHOOSE}."
        )
    if decided is None:
        others = packages - _NEUTRAL - sys.stdlib_module_names
        written_with = set(found) or {known for name in others if (known := _of_package(name))}
        decided = written_with.pop() if len(written_with) == 1 else lightning.flavour()
    return lightning.check_installed(decided, "The code of this sweep")


def _used(value: Any, visited: dict[int, Any], home: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the modules that a value uses, and what it uses of each: in its globals, closure, arguments or attributes.

    Functions that it calls are searched if they are of the same module, ``home``.
    """
    kind = type(value)  # which a proxy cannot answer for another object
    if kind in _PLAIN or id(value) in visited or len(visited) >= _MOST_VALUES:
        return
    visited[id(value)] = value
    if issubclass(kind, ModuleType):
        yield str(getattr(value, "__name__", "")), str(getattr(value, "__name__", ""))
        return
    if issubclass(kind, CodeType):  # of a script
        yield from ((name, name) for name in imports(value))
        return
    if issubclass(kind, FunctionType):
        module = value.__module__ or ""  # code that was made by exec has none
        if flavour_of_module(module) or home not in (None, value.__module__):
            yield module, f"{module}.{value.__name__}"
            return
        yield from ((name, name) for name in imports(value.__code__))
        for _, part in captured(value):
            yield from _used(part, visited, value.__module__)
        return
    kind = value if issubclass(kind, type) else kind
    if (flavour := flavour_of(kind)) is not None:
        if not kind.__module__.startswith("tunelight."):  # tunelight's own are of the process's flavour
            yield flavour, f"{kind.__module__}.{kind.__name__} ({flavour})"
        return
    yield str(kind.__module__), kind.__name__
    for part in _parts(value):
        yield from _used(part, visited, home)


def _parts(value: Any) -> list[Any]:
    """Return the parts of a value that training code may be in; a class's source is not read."""
    kind = type(value)
    try:
        if issubclass(kind, functools.partial | MethodType | dict | list | tuple | set | frozenset):
            return [part for _, part in itertools.islice(parts_of(value), _MOST_VALUES)]
        if issubclass(kind, type):
            return []
        wrapped = inspect.getattr_static(value, "__wrapped__", None)  # as functools.lru_cache leaves it
        call = inspect.getattr_static(kind, "__call__", None)
        called = [call, *getattr(value, "__dict__", {}).values()] if isinstance(call, FunctionType) else []
        return [wrapped, *called]
    except Exception:  # noqa: BLE001 - a user's object may raise anything, and this only looks for a name
        return []


def _of_package(name: str) -> Flavour | None:
    """Return the flavour that a package is written with; None where it is not known, or both.

    What its imported modules have of Lightning decides, else what it requires to be installed.
    """
    used: set[Flavour | None] = set()
    for known, module in [*sys.modules.items()]:
        if known == name or known.startswith(f"{name}."):
            for value in [*getattr(module, "__dict__", {}).values()]:
                kind = type(value)  # a proxy may claim any other class, or import something to tell
                if issubclass(kind, ModuleType):
                    used.add(flavour_of_module(value.__name__))
                elif issubclass(kind, type):
                    used.add(flavour_of(value))
    used.discard(None)
    if not used:
        used = {found for required in _required(name) if (found := flavour_of_module(required.replace("-", "_")))}
    return used.pop() if len(used) == 1 else None


def _required(name: str) -> Iterator[str]:
    """Yield the names of what a distribution requires, without its extras."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        try:
            required = Requirement(line)
        except InvalidRequirement:
            continue
        if required.marker is None or "extra" not in str(required.marker):
            yield required.name
