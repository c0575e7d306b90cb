"""Learning curves: what trials report, epoch by epoch, and how long an epoch takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tunelight.simulation.costs import uniform

KEY = "_curve"
"""Under this key a simulated configuration says whose curve it has."""


@dataclass(frozen=True)
class Curve:
    """What one training reports: ``metrics[name][epoch]``; ``seconds`` an epoch on one worker that is alone.

    A trial that trains past ``epochs`` goes on reporting the last value, and the simulation says so.
    """

    metrics: Mapping[str, Sequence[float]]
    seconds: float
    epochs: int

    def at(self, number: int) -> dict[str, float]:
        """Return report ``number`` (from 1)."""
        index = min(number, self.epochs) - 1
        return {name: float(values[index]) for name, values in self.metrics.items()}


class Curves(Protocol):
    """Where a simulation's trials come from."""

    metric: str
    mode: Literal["min", "max"]
    epochs: int
    size: int
    """How many different curves there are; more trials than that are drawn again."""
    note: str
    """What they are, for whoever reads a figure made of them."""

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number`` (from 0) of a simulation with this seed."""

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return a configuration's curve."""


def deal(number: int, size: int, seed: int) -> int:
    """Return which of ``size`` curves trial ``number`` gets: all of them in a random order, then all in another.

    A Feistel network over the smallest even number of bits that holds ``size`` is a permutation of them; numbers
    beyond ``size`` are sent through again (cycle walking; Black and Rogaway, CT-RSA 2002).
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


class SteadyCurves:
    """Curves that never cross: whoever is ahead after one epoch is ahead after all. For want of recorded ones."""

    metric = "loss"
    mode: Literal["min", "max"] = "min"
    note = "no curves are recorded here: it was assumed that the order of trials never changes as they train"

    def __init__(self, epochs: int, epoch_s: float, size: int = 1000) -> None:
        self.epochs = epochs
        self.size = size
        self._epoch_s = epoch_s

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return a place in the order."""
        return {KEY: deal(number, self.size, seed)}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return a level line at that place."""
        return Curve({"loss": [(config[KEY] + 1) / self.size] * self.epochs}, self._epoch_s, self.epochs)
