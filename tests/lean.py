"""A process without some packages: they are neither found nor listed as installed."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
from typing import Any

DRIVER_ONLY = (
    "cmaes", "jsonargparse", "kaleido", "optuna", "optuna_dashboard", "plotly", "rich", "scipy", "sqlalchemy",
    "tensorboard", "tensorboardX", "typer",
)  # fmt: skip
"""Packages that a node which hosts workers and heads can do without."""


def hide(names: tuple[str, ...] = DRIVER_ONLY) -> None:
    """Make this process one in whose environment those packages are not installed."""
    find, listed = importlib.machinery.PathFinder.find_spec, importlib.metadata.Distribution.from_name

    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in names else find(name, path, target)

    def from_name(name: str) -> Any:
        if name.replace("-", "_") in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return listed(name)

    importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)  # type: ignore[method-assign,assignment]
    importlib.metadata.Distribution.from_name = staticmethod(from_name)  # type: ignore[method-assign,assignment]
