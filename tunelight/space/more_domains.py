"""What Ray Tune's domains lack: fixed values, ordered choices, and priors around a value.

Each is a subclass of one of Ray's, so that searchers and schedulers that know Ray's know these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from ray.tune.search import sample

from tunelight.compat.ray import quantizes_by_index

WIDTH: Final = 1 / 6
"""Standard deviation of a prior, as a share of its domain's range on the domain's own scale."""


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


class _Near:
    """Draws near ``around``: from a normal distribution cut off at the domain's bounds, on the domain's own scale.

    ``step`` is what the bounds are divided by when this is asked: where Ray asks for a quantized whole number in steps.
    """

    def __init__(self, around: Any, step: int = 1) -> None:
        self.around = around
        self.step = step

    def sample(self, domain: Any, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        rng = random_state if hasattr(random_state, "normal") else np.random.default_rng(random_state)
        drawn = [self._draw(domain, rng) for _ in range(size)]
        return drawn if size > 1 else domain.cast(drawn[0])

    def _draw(self, domain: Any, rng: Any) -> Any:
        if isinstance(domain, sample.Categorical):
            place = domain.categories.index(self.around)
            return domain.categories[min(int(_cut(rng, place + 0.5, 0, len(domain))), len(domain) - 1)]
        whole = isinstance(domain, sample.Integer)
        mean = self.around / self.step + (0.5 if whole else 0)  # a whole number n stands for n to n + 1
        if isinstance(self, sample.LogUniform):
            value = math.exp(_cut(rng, math.log(mean), math.log(domain.lower), math.log(domain.upper)))
        else:
            value = _cut(rng, mean, domain.lower, domain.upper)
        if whole:
            return min(max(math.floor(value), domain.lower), domain.upper - 1)
        return min(max(value, domain.lower), domain.upper)  # exp(log(x)) may lie a hair beside x


def _cut(rng: Any, mean: float, lower: float, upper: float) -> float:
    """Draw from a normal distribution until the value is within the bounds; at least half of the draws are."""
    while True:
        value = float(rng.normal(mean, WIDTH * (upper - lower)))
        if lower <= value <= upper:
            return value


class Near(_Near, sample.Uniform):
    """Draws near a value on a linear scale."""


class NearLog(_Near, sample.LogUniform):
    """Draws near a value on a logarithmic scale."""


def near(domain: Any, around: Any) -> Any:
    """Return a domain of Ray Tune with a prior around one of its values."""
    new, sampler = copy.copy(domain), domain.get_sampler()
    quantized = isinstance(sampler, sample.Quantized)
    inner = sampler.get_sampler() if quantized else sampler
    kind = NearLog if isinstance(inner, sample.LogUniform) else Near
    step = sampler.q if quantized and isinstance(domain, sample.Integer) and quantizes_by_index() else 1
    prior: Any = kind(around, step)
    new.set_sampler(sample.Quantized(prior, sampler.q) if quantized else prior, allow_override=True)
    return new


def prior(domain: Any) -> Any:
    """Return the center of a domain's prior; None without a prior."""
    if not isinstance(domain, sample.Domain):
        return None
    sampler: Any = domain.get_sampler()
    if isinstance(sampler, sample.Quantized):
        sampler = sampler.get_sampler()
    return sampler.around if isinstance(sampler, _Near) else None
