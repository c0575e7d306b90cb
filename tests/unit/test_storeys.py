"""The first storey without the second: in a copy of the package without `tunelight/extras`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.doors import PACKAGE, modules, room_of

LIGHT = frozenset({"sweep", "cli", "cluster", "space", "results", "reporting"})
"""Rooms without torch, which takes seconds to import."""


IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"tunelight.{name}")
print(sys.modules["tunelight"].__file__)
"""


def test_the_first_storey_and_the_commands_are_imported_without_the_second(tmp_path: Path) -> None:
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("extras"))
    light = [name for name in modules() if room_of(name) in LIGHT and not name.startswith("cli.starter.")]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *light], env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{copy}/__init__.py\n"), done.stderr
