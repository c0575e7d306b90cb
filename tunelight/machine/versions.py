"""Which versions of what are installed."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable


def versions_of(names: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of packages, and of "python" (None: not installed); none of them is imported."""
    return {name: platform.python_version() if name == "python" else _installed(name) for name in names}


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
