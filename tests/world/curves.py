"""Learning curves: what trials report at each epoch, and how long an epoch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.world.costs import uniform

KEY = "_curve"
"""The key of a simulated configuration that names its curve."""


@dataclass(frozen=True)
class Curve:
    """The reports of a training, ``metrics[name][epoch]``; ``seconds``: of an epoch on a single worker.

    A trial that trains past ``epochs`` goes on reporting the last value.
    """

    metrics: Mapping[str, Sequence[float]]
    seconds: float
    epochs: int

    def at(self, number: int) -> dict[str, float]:
        """Return report ``number`` (from 1)."""
        index = min(number, self.epochs) - 1
        return {name: float(values[index]) for name, values in self.metrics.items()}


class Curves(Protocol):
    """The configurations and curves of a simulation's trials."""

    metric: str
    mode: Literal["min", "max"]
    epochs: int
    size: int
    """How many different curves there are; with more trials than that, some come again."""

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number`` (from 0) of a simulation with this seed."""

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return a configuration's curve."""


def deal(number: int, size: int, seed: int) -> int:
    """Return which of ``size`` curves trial ``number`` gets: all in a random order, then all in another, and so on.

    A Feistel network over the smallest even number of bits that holds ``size`` is a permutation; results beyond
    ``size`` go through it again (cycle walking; Black and Rogaway, CT-RSA 2002).
    """
    deck, card = divmod(number, size)
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = card >> half, card & mask
        for turn in range(4):
            left, right = right, left ^ int(uniform(seed, deck, turn, right) * (mask + 1))
        card = left << half | right
        if card < size:
            return card
