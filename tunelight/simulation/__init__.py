"""The real schedulers, searchers and Tune's controller on virtual time (runs on: driver, without Ray)."""

from __future__ import annotations

from tunelight.simulation.costs import Costs
from tunelight.simulation.curves import Curve, Curves
from tunelight.simulation.result import SimTrial, Simulation
from tunelight.simulation.simulate import simulate
from tunelight.simulation.sources import TableCurves, recorded, tasks

__all__ = ["Costs", "Curve", "Curves", "SimTrial", "Simulation", "TableCurves", "recorded", "simulate", "tasks"]
