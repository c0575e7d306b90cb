"""Simulated sweeps: the real schedulers, searchers and Tune's controller on virtual time, without a running Ray."""

from __future__ import annotations

from tunelight.simulation.costs import Costs
from tunelight.simulation.curves import Curve, Curves
from tunelight.simulation.result import SimTrial, Simulation
from tunelight.simulation.run import simulate
from tunelight.simulation.sources import SweepCurves, TableCurves, recorded, tasks

__all__ = [
    "Costs", "Curve", "Curves", "SimTrial", "Simulation", "SweepCurves", "TableCurves", "recorded", "simulate", "tasks",
]  # fmt: skip
