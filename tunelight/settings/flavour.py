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
from tunelight.compat.lightning import HOW_TO_CHOOSE, Flavour, flavour_of, flavour_of_module, made_for_one
from tunelight.errors import TrainFunctionError
from tunelight.settings.pickling import captured, operands, parts_of

_MOST_PARTS = 1000
"""Items of a list or a mapping that are looked at: data that a function takes along may have millions."""
_NEUTRAL: Final = frozenset(
    {"builtins", "numpy", "pandas", "ray", "sklearn", "torch", "torchmetrics", "torchvision", "tunelight"}
)
"""Packages that many use and that say nothing about the flavour."""


def find_flavour(code: Mapping[str, Any]) -> Flavour:
    """Return the flavour of Lightning that some code trains with.

    Args:
        code: functions, classes, arguments and lists of them, by the names that errors give them.

    Raises: TrainFunctionError where the code uses both flavours and the user has not chosen, or has chosen another;
    SettingsError if the package is not installed.
    """
    seen = _Search()
    for what, value in code.items():
        for flavour, name in seen.names(value):
            seen.found.setdefault(flavour, f"{what} uses {name}")
    chosen = lightning.asked()
    if chosen is not None and seen.found and chosen not in seen.found:
        raise TrainFunctionError(
            f"{next(iter(seen.found.values()))}, and {chosen} was chosen for this process by tunelight.use() or by "
            f"{lightning.VARIABLE}. {_ALIKE} Choose the package that your code imports."
        )
    if chosen is None and len(seen.found) > 1:
        raise TrainFunctionError(
            f"{' and '.join(seen.found.values())}. {_ALIKE} Import the same one in all of this code, or choose: "
            f"{HOW_TO_CHOOSE}.{seen.about_own}"
        )
    if chosen is None:
        written_with = set(seen.found) or {known for name in seen.packages if (known := _of_package(name))}
        chosen = written_with.pop() if len(written_with) == 1 else lightning.flavour()
    return lightning.check_installed(chosen, "The code of this sweep")


_ALIKE: Final = (
    "Lightning is published under two names, `lightning` (with lightning.pytorch in it) and `pytorch_lightning`; "
    "their classes look alike and do not recognise each other."
)


@dataclass
class _Search:
    """What has been seen of some code."""

    found: dict[Flavour, str] = field(default_factory=dict)
    """What it uses of each flavour."""
    packages: set[str] = field(default_factory=set)
    """Other packages that it uses."""
    about_own: str = ""
    """What to say where one of the names is of a class of tunelight."""
    visited: dict[int, Any] = field(default_factory=dict)

    def names(self, value: Any, home: str | None = None) -> Iterator[tuple[Flavour, str]]:
        """Yield what a value uses of Lightning: itself, or in its globals, closure, arguments or attributes.

        Functions that it calls are searched if they are of the same module, ``home``.
        """
        if id(value) in self.visited:
            return
        self.visited[id(value)] = value
        if isinstance(value, ModuleType):
            yield from self._module(value.__name__)
            return
        kind = value if isinstance(value, type) else type(value)
        if (flavour := flavour_of(kind)) is not None:
            if made_for_one(kind.__module__):
                self.about_own = (
                    f" {kind.__name__} of tunelight is made for the package that is imported when it is first asked "
                    "for: import Lightning before it."
                )
            yield flavour, f"{kind.__module__}.{kind.__name__} ({flavour})"
            return
        if isinstance(value, FunctionType):
            yield from self._function(value, home)
            return
        yield from self._module(kind.__module__)
        for part in _parts(value):
            yield from self.names(part, home)

    def _module(self, name: str) -> Iterator[tuple[Flavour, str]]:
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
        for name in operands(value.__code__, "IMPORT_NAME"):
            yield from self._module(name)
        for _, part in captured(value):
            yield from self.names(part, value.__module__)


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts of a value that training code may be in; a class's source is not read."""
    if isinstance(value, functools.partial | MethodType | Mapping | list | tuple | set | frozenset):
        yield from (part for _, part in itertools.islice(parts_of(value), _MOST_PARTS))
    elif not isinstance(value, type):
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, FunctionType):
            yield call
            yield from getattr(value, "__dict__", {}).values()


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
