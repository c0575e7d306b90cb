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
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement

from tunelight.compat import lightning
from tunelight.compat.lightning import ALIKE, HOW_TO_CHOOSE, Flavour, flavour_of, flavour_of_module
from tunelight.errors import TrainFunctionError
from tunelight.settings.pickling import captured, imports, parts_of

_MOST_VALUES = 5000
"""How many values are looked at: data that a function takes along may have millions."""
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, bytearray)
_NEUTRAL: Final = frozenset(
    {"builtins", "numpy", "pandas", "ray", "sklearn", "torch", "torchmetrics", "torchvision", "tunelight"}
)
"""Packages that many use and that say nothing about the flavour."""


def find_flavour(code: Mapping[str, Any]) -> Flavour:
    """Return the flavour of Lightning that some code trains with.

    Args:
        code: functions, classes, arguments and lists of them, by the names that errors give them.

    Raises: SettingsError where the code uses another flavour than this process, or the package is not installed;
    TrainFunctionError where it uses both and the user has not chosen.
    """
    seen = _Search()
    for what, value in code.items():
        for flavour, name in seen.names(value):
            seen.found.setdefault(flavour, f"{what} uses {name}")
    uses = " and ".join(seen.found.values())
    decided = lightning.check_decided(seen.found, uses)
    if len(seen.found) > 1 and lightning.asked() is None:
        raise TrainFunctionError(
            f"{uses}. {ALIKE} Import the same one in all of this code, or choose: {HOW_TO_CHOOSE}."
        )
    if decided is None:
        written_with = set(seen.found) or {known for name in seen.packages if (known := _of_package(name))}
        decided = written_with.pop() if len(written_with) == 1 else lightning.flavour()
    return lightning.check_installed(decided, "The code of this sweep")


@dataclass
class _Search:
    """What has been seen of some code."""

    found: dict[Flavour, str] = field(default_factory=dict)
    """What it uses of each flavour."""
    packages: set[str] = field(default_factory=set)
    """Other packages that it uses."""
    visited: dict[int, Any] = field(default_factory=dict)

    def names(self, value: Any, home: str | None = None) -> Iterator[tuple[Flavour, str]]:
        """Yield what a value uses of Lightning: itself, or in its globals, closure, arguments or attributes.

        Functions that it calls are searched if they are of the same module, ``home``.
        """
        # By type(), which a proxy cannot answer for another object.
        kind = type(value)
        if kind in _PLAIN or id(value) in self.visited or len(self.visited) >= _MOST_VALUES:
            return
        self.visited[id(value)] = value
        if issubclass(kind, ModuleType):
            yield from self._module(getattr(value, "__name__", None))
            return
        if issubclass(kind, FunctionType):
            yield from self._function(value, home)
            return
        kind = value if issubclass(kind, type) else kind
        if (flavour := flavour_of(kind)) is not None:
            if not kind.__module__.startswith("tunelight."):  # tunelight's own are of the process's flavour
                yield flavour, f"{kind.__module__}.{kind.__name__} ({flavour})"
            return
        yield from self._module(kind.__module__)
        for part in _parts(value):
            yield from self.names(part, home)

    def _module(self, name: Any) -> Iterator[tuple[Flavour, str]]:
        if not isinstance(name, str):  # code that was made by exec has none
            return
        if (flavour := flavour_of_module(name)) is not None:
            yield flavour, name
            return
        package = name.partition(".")[0]
        if package not in _NEUTRAL and package not in sys.stdlib_module_names:
            self.packages.add(package)

    def _function(self, value: FunctionType, home: str | None) -> Iterator[tuple[Flavour, str]]:
        if (flavour := flavour_of_module(value.__module__)) is not None:
            yield flavour, f"{value.__module__}.{value.__name__}"
            return
        if home not in (None, value.__module__):
            yield from self._module(value.__module__)
            return
        for name in imports(value.__code__):
            yield from self._module(name)
        for _, part in captured(value):
            yield from self.names(part, value.__module__)


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
