"""A node that hosts workers and heads needs nothing that only drivers use."""

from __future__ import annotations

import pytest

from tests.kit.programs import printed_by
from tests.lean import DRIVER_ONLY

WORKER = (
    "gang.worker lightning.recipe lightning.strategies lightning.callbacks lightning.guard "
    "extras.standalone.job extras.data.module extras.data.cached extras.digits"
)


@pytest.mark.parametrize(
    ("needed", "hidden"),
    [
        ("trial.trainable extras.plain_tune cluster.connect extras.data.server", DRIVER_ONLY),
        (WORKER, DRIVER_ONLY),
        ("sweep.run extras.optuna extras.tensorboard reporting.display", ("kaleido", "optuna_dashboard", "plotly")),
    ],
    ids=["head", "worker", "driver"],
)
def test_each_process_starts_without_what_it_does_not_use(needed, hidden):
    printed_by(f"""
import importlib, importlib.util, sys
from tests.lean import hide
hide({hidden!r})
assert not any(map(importlib.util.find_spec, {hidden!r}))
for name in {needed.split()!r}:
    importlib.import_module(f"tunelight.{{name}}")
""")
