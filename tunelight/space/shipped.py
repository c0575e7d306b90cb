"""The search spaces that come with tunelight, found by name: ``tl.run("digits_mlp")``."""

from __future__ import annotations

import os
from pathlib import Path

from tunelight.errors import SpaceError, guess

_SUFFIXES = (".yaml", ".yml")


def folder() -> Path:
    """Return the folder of the spaces: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "searchspaces"
    return installed if installed.is_dir() else package.parent / "searchspaces"


def names() -> list[str]:
    """Return the names of the spaces that come with tunelight."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def find(given: str | os.PathLike[str]) -> Path:
    """Return the file of a space: an existing path as it is, else the file of a shipped space of that name.

    Raises: SpaceError for an unknown name.
    """
    path = Path(given)
    if path.suffix == ".py":
        raise SpaceError(
            f"{path} is a Python file, and a search space is a YAML file (with `train: {path.stem}:train` in it). A "
            f"script that calls tl.run itself is run by python: python {path}"
        )
    there = os.path.isfile(path)  # noqa: PTH113 - Path's own raises where a name is too long
    if path.suffix in _SUFFIXES or len(path.parts) > 1 or there or not isinstance(given, str):
        return path
    if given in names():
        return folder() / f"{given}.yaml"
    beside = [other.name for suffix in _SUFFIXES for other in Path().glob(f"*{suffix}")]
    raise SpaceError(
        f"There is no search space {given!r}.{guess(given, [*names(), *beside])} With tunelight come: "
        f"{', '.join(names())}. A file of your own is named with its ending, {given}.yaml."
    )
