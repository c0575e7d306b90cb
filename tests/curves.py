"""A tiny table of made-up learning curves: the simulator's tests need curves, not truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tests.world import Costs, Curve
from tests.world.curves import Table, TableCurves

FREE = Costs(reserve_s=0, start_cold_s=0, start_warm_s=0, grow_s=0.1)
"""Gangs start at once, and grow nearly so."""


def tiny_table(configs: int = 40, seeds: int = 2, epochs: int = 27, seed: int = 0) -> TableCurves:
    """Return curves that fall to different depths at different speeds, and cross."""
    rng = np.random.default_rng(seed)
    depth = rng.lognormal(-1, 0.7, (configs, 1, 1))
    rate = rng.uniform(0.02, 0.5, (configs, 1, 1))
    loss = depth + (2.3 - depth) * np.exp(-rate * np.arange(1, epochs + 1)) + rng.normal(0, 0.01, (1, seeds, epochs))
    return TableCurves(
        Table(
            "Made up.",
            {"loss": "min", "accuracy": "max"},
            {},
            [{"lr": float(number + 1)} for number in range(configs)],
            rng.uniform(0.5, 2, configs),
            {"loss": loss, "accuracy": np.exp(-loss)},
        )
    )


class Given:
    """Losses that a test gives, one list for each trial in order; an epoch takes a second on one worker."""

    metric = "loss"
    mode: Literal["min", "max"] = "min"

    def __init__(self, *losses: Sequence[float]) -> None:
        self.losses, self.size, self.epochs = losses, len(losses), len(losses[0])

    def config(self, number: int, seed: int) -> dict[str, Any]:
        return {"number": number, "x": 0.5}

    def curve(self, config: Any) -> Curve:
        return Curve({"loss": self.losses[config["number"] % self.size]}, 1.0)


def falling(count: int, epochs: int, seed: int = 3) -> list[list[float]]:
    """Return losses that fall to limits drawn at random; their order stays the same throughout."""
    rng = random.Random(seed)
    limits = [rng.random() for _ in range(count)]
    return [[limit + 1 / epoch for epoch in range(1, epochs + 1)] for limit in limits]
