"""Simulated sweeps: the real schedulers, searchers and Tune's controller on virtual time, without a running Ray."""

from __future__ import annotations

from tests.world.costs import Costs
from tests.world.curves import Curve, Curves
from tests.world.result import SimTrial, Simulation
from tests.world.run import simulate
from tests.world.sources import TableCurves, recorded, tasks

__all__ = [
    "Costs", "Curve", "Curves", "SimTrial", "Simulation", "TableCurves", "recorded", "simulate", "tasks",
]  # fmt: skip
