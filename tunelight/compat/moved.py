"""Import paths of version 0.1 that lead to the modules' new places, with a DeprecationWarning, until version 0.3.

`install` adds a finder behind Python's own, which is asked only for what nothing else finds. What it makes is a module
that takes every attribute from the module's new place, so that a class has one identity by both paths.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

MODULES: Final[Mapping[str, str]] = {
    "tunelight.caching": "tunelight.data.cached",
    "tunelight.callbacks": "tunelight.lightning.callbacks",
    "tunelight.datasets": "tunelight.data",
    "tunelight.datasets.module": "tunelight.data.module",
    "tunelight.datasets.shards": "tunelight.data.shards",
    "tunelight.pareto": "tunelight.results.pareto",
    "tunelight.recipe": "tunelight.lightning.recipe",
    "tunelight.reopen": "tunelight.sweep.resume",
    "tunelight.reporting.figures": "tunelight.results.figures",
    "tunelight.reproducing": "tunelight.sweep.reproduce",
    "tunelight.starter": "tunelight.cli.starter",
    "tunelight.starter.train": "tunelight.cli.starter.train",
    "tunelight.storage": "tunelight.record",
    "tunelight.strategies": "tunelight.lightning.strategies",
    "tunelight.strategies.base": "tunelight.lightning.strategies.base",
    "tunelight.strategies.ddp": "tunelight.lightning.strategies.ddp",
    "tunelight.strategies.horovod": "tunelight.lightning.strategies.horovod",
    "tunelight.strategies.sharded": "tunelight.lightning.strategies.sharded",
    "tunelight.trainable": "tunelight.trial.trainable",
    "tunelight.tuner": "tunelight.trial.plain_tune",
}
"""Old path -> new path."""

_END: Final = "the old path goes in version 0.3"


class _Finder(MetaPathFinder):
    """Finds modules by their old paths."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to make a module that has moved; None for any other."""
        if name not in MODULES:
            return None
        return ModuleSpec(name, _Loader(), is_package=any(old.startswith(f"{name}.") for old in MODULES))


class _Loader(Loader):
    """Makes a module whose attributes are those of the module at the new path."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: Python's own kind of module is right."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Import the new path, and say that this is the old one."""
        path = MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is {path} now; {_END}.", DeprecationWarning, stacklevel=2)
        place = import_module(path)

        def attribute(name: str) -> Any:
            if name.startswith("__"):  # a module's own
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(place, name)

        vars(module).update(__doc__=place.__doc__, __getattr__=attribute, __dir__=lambda: dir(place))
        if hasattr(place, "__all__"):
            vars(module).update(__all__=place.__all__)


def install() -> None:
    """Have old paths found from now on. Callable more than once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def public_names(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that was a module, and had public names: name -> the module it is in."""

    def attribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is tunelight.{name} now; {_END}.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(places[name]), name)

    return attribute
