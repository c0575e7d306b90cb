"""A node that hosts workers and heads needs nothing that only drivers use."""

from __future__ import annotations

import pytest

from tests.kit.programs import printed_by
from tests.lean import DRIVER_ONLY

HEAD = "tunelight.trial.trainable tunelight.extras.plain_tune tunelight.cluster.connect tunelight.extras.data.server"
WORKER = (
    "tunelight.gang.worker tunelight.lightning.recipe tunelight.lightning.strategies tunelight.lightning.callbacks "
    "tunelight.lightning.guard tunelight.extras.standalone.job tunelight.extras.data.module "
    "tunelight.extras.data.cached tunelight.extras.digits"
)


DRIVER = "tunelight.sweep.run tunelight.extras.optuna tunelight.extras.tensorboard tunelight.reporting.display"
FIGURES = ("kaleido", "optuna_dashboard", "plotly")


@pytest.mark.parametrize(
    ("needed", "hidden"),
    [(HEAD, DRIVER_ONLY), (WORKER, DRIVER_ONLY), (DRIVER, FIGURES)],
    ids=["head", "worker", "driver"],
)
def test_each_process_starts_without_what_it_does_not_use(needed, hidden):
    printed_by(f"""
import importlib, importlib.util, sys
from tests.lean import hide
hide({hidden!r})
assert not any(map(importlib.util.find_spec, {hidden!r}))
for name in {needed.split()!r}:
    importlib.import_module(name)
""")
