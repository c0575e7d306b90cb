"""A tunelight on the import path that nobody has installed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import tunelight
from tunelight.machine.metadata import ENTRY_POINTS, ensure_entry_points, is_installed

ROOT = Path(__file__).parents[3]

SCRIPT = """
import importlib.metadata, sys
from pathlib import Path

sys.path[:0] = sys.argv[1:2]
from tunelight.machine import metadata

assert not metadata.is_installed()
for _ in range(2):
    metadata.ensure_entry_points(Path(sys.argv[2]))
for group in metadata.ENTRY_POINTS:
    (found,) = importlib.metadata.entry_points(group=group)
    assert found.load()() == []  # nothing outside of a trial
print(importlib.metadata.version("tunelight"), len(list(Path(sys.argv[2]).iterdir())))
"""


def test_entry_points_are_those_of_the_package() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group: points["tunelight"] for group, points in told.items()} == ENTRY_POINTS


def test_they_are_found_where_it_is_not_installed(tmp_path: Path) -> None:
    where = tmp_path / "path"
    where.mkdir()
    (where / "tunelight").symlink_to(ROOT / "tunelight")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SCRIPT, str(where), str(tmp_path / "cache")],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == [tunelight.__version__, "1"], done.stderr


def test_nothing_is_written_where_it_is(tmp_path: Path) -> None:
    assert is_installed()
    ensure_entry_points(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    assert importlib.metadata.version("tunelight") == tunelight.__version__
