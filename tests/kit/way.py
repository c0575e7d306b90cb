"""In which order a sweep calls functions for the first time, on virtual time: python -m tests.kit.way ROOM:NAME ..."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def found(station: str) -> tuple[Any, str]:
    """Return the module or class of a function, and its name there: of ``gang/run.py:ResilientRun.answer``, say."""
    file, _, names = station.partition(":")
    *classes, name = names.split(".")
    owner: Any = importlib.import_module("tunelight." + file.removesuffix(".py").replace("/", "."))
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def lines(station: str) -> int:
    """Return how long a function is."""
    owner, name = found(station)
    return len(inspect.getsource(getattr(owner, name)).splitlines())


def _noted(station: str, calls: dict[str, None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        calls.setdefault(station)
        return function(*given, **more)

    return call


def main() -> None:
    """Print the functions that were called, in order."""
    from tests.world.sweeps import load, run

    load()
    calls: dict[str, None] = {}
    for station in sys.argv[1:]:
        owner, name = found(station)
        setattr(owner, name, _noted(station, calls, getattr(owner, name)))
    with tempfile.TemporaryDirectory() as folder:
        world = run(0, "asha", Path(folder))
    assert world.error is None, world.error
    sys.stdout.write("".join(f"{station}\n" for station in calls))


if __name__ == "__main__":
    main()
