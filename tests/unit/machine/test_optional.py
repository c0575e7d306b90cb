"""The core without its optional rooms: in a copy of the package from which they have been removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors import PACKAGE, look_ups, modules, optional_room, without
from tests.removing import copy_without
from tunelight.machine.optional import OPTIONAL


def test_the_core_looks_up_each_optional_room_at_one_place() -> None:
    assert sorted(look_ups()) == sorted(name for name, room in OPTIONAL.items() if room.entry)


def test_every_part_of_an_optional_room_exists() -> None:
    parts = [part for room in OPTIONAL.values() for part in room.parts]
    assert set(parts) <= modules().keys() | {part for part in parts if (PACKAGE / part.replace(".", "/")).is_dir()}


@pytest.mark.parametrize("name", OPTIONAL)
def test_the_core_and_its_commands_are_imported_without_an_optional_room(name: str, tmp_path: Path) -> None:
    gone = without(name)
    copy_without(gone, tmp_path)
    core = [f"tunelight.{module}" for module in modules() if module and optional_room(module) not in gone]
    light = [name for name in core if name.split(".")[1] in {"sweep", "cli", "cluster", "space", "results"}]  # no torch
    done = subprocess.run(
        [sys.executable, "-c", f"import importlib\nfor name in {light!r}: importlib.import_module(name)"],
        capture_output=True, text=True, cwd=tmp_path, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        (
            "web",
            "from tunelight.sweep.live_page import check_web; check_web()",
            "This tunelight is without the live page",
        ),
        ("formats", "tl.SearchSpace.from_format({}, 'wandb')", "without search spaces of other programs"),
        ("simulation", "tl.simulate", "No module named 'tunelight.simulation'"),
    ],
)
def test_what_is_missing_is_said_where_it_is_asked_for(name: str, asked: str, said: str, tmp_path: Path) -> None:
    copy_without(without(name), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", f"import tunelight as tl; {asked}"],
        capture_output=True, text=True, cwd=tmp_path, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
