"""A node that hosts workers and heads needs nothing that only drivers use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.doors import PACKAGE

HEAD = "tunelight.trial.trainable tunelight.trial.plain_tune tunelight.cluster.nodes tunelight.data.server"
WORKER = (
    "tunelight.gang.worker tunelight.lightning.recipe tunelight.lightning.strategies tunelight.lightning.callbacks "
    "tunelight.lightning.guard tunelight.lightning.remote.job tunelight.data.module tunelight.data.cached "
    "tunelight.digits"
)


@pytest.mark.parametrize("needed", [HEAD, WORKER], ids=["head", "worker"])
def test_heads_and_workers_start_without_what_only_drivers_use(needed):
    code = f"""
import importlib, importlib.util, sys
from tests.lean import DRIVER_ONLY, hide
hide()
assert not any(map(importlib.util.find_spec, DRIVER_ONLY))
for name in {needed.split()!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
