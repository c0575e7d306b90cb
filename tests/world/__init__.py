"""Sweeps on virtual time, without a running Ray: for tests and benchmarks.

``simulate`` plays a sweep of recorded curves, with the real schedulers, searchers and Tune's controller over simulated
gangs. ``python -m tests.world`` runs ``tunelight.run`` itself, down to the ranks, and breaks everything on its way:
``kernel`` owns time, processes and threads, ``rays`` stands for Ray, ``stores`` for an object store, ``ranks`` has the
workers' training, ``sweeps`` one sweep, ``faults`` what happens to it and ``checks`` what must hold.
"""

from __future__ import annotations

from tests.world.curves import Costs, Curve
from tests.world.run import Simulation, simulate

__all__ = ["Costs", "Curve", "Simulation", "simulate"]
