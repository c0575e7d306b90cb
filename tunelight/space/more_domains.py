"""What Ray Tune's domains lack: fixed values, ordered choices, and domains known by their quantiles.

Each is a subclass of one of Ray's, so that searchers and schedulers that know Ray's know these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.tune.search import sample


class Fixed(sample.Categorical):
    """One value, which is drawn without asking a generator."""

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Return the value; ``size`` times, as a list, where that is more than 1."""
        (value,) = self.categories
        return value if size == 1 else [value] * size


class Ordinal(sample.Categorical):
    """A choice among values that have an order, each as likely as the others."""


def ordinal(categories: Sequence[Any]) -> Ordinal:
    """Return a choice among values that have an order, as sizes do: a neighbour is nearer than another."""
    return Ordinal(categories)


class Quantiles(sample.Domain):
    """A domain that is known by its quantiles; ``written``: as a space file describes it, by its name."""

    def __init__(self, name: str, written: Any) -> None:
        self.name, self.written = name, written

    def value(self, quantile: float) -> Any:
        """Return the value at a quantile, from 0 to 1."""
        raise NotImplementedError

    def quantile(self, value: Any) -> float | None:
        """Return the quantile of a value; None where it is none of the values."""
        raise NotImplementedError

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Return a value; ``size`` of them, as a list, where that is more than 1."""
        rng = random_state if hasattr(random_state, "uniform") else np.random.default_rng(random_state)
        drawn = [self.value(float(rng.uniform())) for _ in range(size)]
        return drawn if size > 1 else drawn[0]

    def get_sampler(self) -> Quantiles:
        """Return itself: it needs no other sampler."""
        return self
