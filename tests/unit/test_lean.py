"""A node that hosts workers and heads needs nothing that only drivers use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors import PACKAGE, modules, room_of
from tests.lean import DRIVER_ONLY

HEAD = "tunelight.trial.trainable tunelight.extras.plain_tune tunelight.cluster.connect tunelight.extras.data.server"
WORKER = (
    "tunelight.gang.worker tunelight.lightning.recipe tunelight.lightning.strategies tunelight.lightning.callbacks "
    "tunelight.lightning.guard tunelight.extras.standalone.job tunelight.extras.data.module "
    "tunelight.extras.data.cached tunelight.extras.digits"
)


DRIVER = "tunelight.sweep.run tunelight.searchers.optuna tunelight.extras.tensorboard tunelight.reporting.display"
FIGURES = ("kaleido", "optuna_dashboard", "plotly")


@pytest.mark.parametrize(
    ("needed", "hidden"),
    [(HEAD, DRIVER_ONLY), (WORKER, DRIVER_ONLY), (DRIVER, FIGURES)],
    ids=["head", "worker", "driver"],
)
def test_each_process_starts_without_what_it_does_not_use(needed, hidden):
    code = f"""
import importlib, importlib.util, sys
from tests.lean import hide
hide({hidden!r})
assert not any(map(importlib.util.find_spec, {hidden!r}))
for name in {needed.split()!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


# --- the first storey without the second: in a copy of the package without extras


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
