"""Copies of the package without some of its optional rooms."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from tests.doors import PACKAGE
from tunelight.machine.optional import OPTIONAL


def copy_without(rooms: Collection[str], folder: Path) -> None:
    """Copy the package into ``folder``, without the modules of these optional rooms.

    With its bytecode, which is not used for a module that is gone.
    """
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy)
    parts = [part for name in rooms for part in OPTIONAL[name].parts]
    for part in sorted(parts, reverse=True):  # one that lies in another comes first
        path = copy / part.replace(".", "/")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.with_suffix(".py").unlink()
