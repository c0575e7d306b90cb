"""tunelight's strategies by name, in the StrategyRegistry of both packages of Lightning.

A name is a text, which configuration frameworks and libraries pass on where they refuse an object: ``strategy="ray"``.
Lightning is not imported for it: a finder adds the names when a process imports Lightning's strategies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from tunelight.compat.lightning import FABRIC, Flavour, decide

NAMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "ray": ("RayStrategy", {}),
    "ray_find_unused_parameters_true": ("RayStrategy", {"find_unused_parameters": True}),
    "ray_horovod": ("HorovodRayStrategy", {}),
    "ray_sharded": ("RayShardedStrategy", {}),
}
"""Name -> the strategy, and its arguments."""

Load = Callable[[str], Any]
"""Returns a strategy's class by its name."""


def register(load: Load) -> None:
    """Register the strategies with each Lightning of this process, also with one that is imported later."""
    for flavour in FABRIC:
        module = sys.modules.get(f"{flavour}.strategies")
        if module is not None and hasattr(module, "StrategyRegistry"):  # it has been imported to its end
            _add(module, flavour, load)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(load))


def _add(module: ModuleType, flavour: Flavour, load: Load) -> None:
    """Add the names to a package's registry, and each class's import path in small letters, as Lightning reads it.

    LightningCLI passes ``--trainer.strategy=tunelight.RayStrategy`` on as a text where no argument follows.
    """
    paths = {f"tunelight.{kind}".lower(): (kind, given) for kind, given in NAMES.values() if not given}
    for name, (kind, given) in (NAMES | paths).items():
        if name not in module.StrategyRegistry:
            text = f"tunelight.{kind} on the workers of a gang"
            module.StrategyRegistry.register(name, partial(_make, flavour, kind, load), description=text, **given)


def _make(flavour: Flavour, kind: str, load: Load, **given: Any) -> Any:
    """Return a strategy for a Trainer of this flavour."""
    decide(flavour, f"This Trainer is of {flavour}")
    return load(kind)(**given)


class _Finder(MetaPathFinder):
    """Finds Lightning's strategies as the other finders do, and registers once they are imported."""

    def __init__(self, load: Load) -> None:
        self._flavours = {f"{flavour}.strategies": flavour for flavour in FABRIC}
        self._load = load

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import Lightning's strategies; None for any other module."""
        flavour = self._flavours.get(name)
        if flavour is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for one in others if (found := one.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _add(module, flavour, self._load)

            loader.exec_module = exec_module  # type: ignore[method-assign]  # each spec has a loader of its own
        return spec
