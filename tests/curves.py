"""A tiny table of made-up learning curves: the simulator's tests need curves, not truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.world import TableCurves


def tiny_table(configs: int = 40, seeds: int = 2, epochs: int = 27, seed: int = 0, **settings: Any) -> TableCurves:
    """Return curves that fall to different depths at different speeds, and cross."""
    rng = np.random.default_rng(seed)
    depth = rng.lognormal(-1, 0.7, (configs, 1, 1))
    rate = rng.uniform(0.02, 0.5, (configs, 1, 1))
    loss = depth + (2.3 - depth) * np.exp(-rate * np.arange(1, epochs + 1)) + rng.normal(0, 0.01, (1, seeds, epochs))
    return TableCurves(
        "tiny",
        {"loss": loss, "accuracy": np.exp(-loss)},
        rng.uniform(0.5, 2, configs),
        [{"lr": float(number + 1)} for number in range(configs)],
        **settings,
    )
