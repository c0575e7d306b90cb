"""Learning curves that are made up: tests of schedulers need curves, not truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from tests.world import Costs, Curve

FREE = Costs(reserve_s=0, start_cold_s=0, start_warm_s=0, grow_s=0.1)
"""Gangs start at once, and grow nearly so."""


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
