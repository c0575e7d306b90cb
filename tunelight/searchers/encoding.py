"""Configurations of a search space as points of the unit cube, and as the columns that a model sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from tunelight.space import SearchSpace
from tunelight.space.domains import spell
from tunelight.space.more_domains import Quantiles

_INSIDE: Final = 1e-9
"""How far from 0 and 1 a coordinate stays that is mapped to a value."""

_ROUNDING: Final = 1e-9
"""The part of a step by which a bound may miss a multiple of the step: 13.7 is 136.99999999999997 steps of 0.1."""


class Axis(Protocol):
    """A key of the space: its values as coordinates in [0, 1]."""

    @property
    def columns(self) -> int:
        """How many columns a model sees of it."""

    def coordinate(self, value: Any) -> float | None:
        """Return a value's coordinate; None where the domain has no such value."""

    def value(self, coordinate: float) -> Any:
        """Return the value at a coordinate."""


@dataclass(frozen=True)
class NumberAxis:
    """A bounded number. ``whole``: an integer, whose upper bound is left out; ``step``: of a quantized domain."""

    lower: float
    upper: float
    log: bool = False
    whole: bool = False
    step: float | None = None
    columns: int = 1

    def coordinate(self, value: Any) -> float | None:
        """Return where the value lies between the bounds, on the domain's own scale."""
        if not _is_number(value) or not self.lower <= value <= self.upper:
            return None
        middle = value + 0.5 if self.whole and self.step is None else value  # an integer n stands for n to n + 1
        low, high = self._scaled(self.lower), self._scaled(self.upper)
        return min(max((self._scaled(middle) - low) / (high - low), 0.0), 1.0)

    def value(self, coordinate: float) -> Any:
        """Return the number there, rounded as the domain asks, and within its bounds."""
        low, high = self._scaled(self.lower), self._scaled(self.upper)
        found = low + min(max(coordinate, _INSIDE), 1 - _INSIDE) * (high - low)
        found = math.exp(found) if self.log else found
        if self.step is not None:
            first, last = math.ceil(self.lower / self.step - _ROUNDING), math.floor(self.upper / self.step + _ROUNDING)
            found = min(max(round(found / self.step), first), last) * self.step
            if self.whole:
                return int(found)
        elif self.whole:
            return int(min(max(math.floor(found), self.lower), self.upper - 1))
        return float(min(max(found, self.lower), self.upper))

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value


@dataclass(frozen=True)
class NormalAxis:
    """A number without bounds, drawn from a normal distribution, by its quantile."""

    mean: float
    sd: float
    step: float | None = None
    columns: int = 1

    def coordinate(self, value: Any) -> float | None:
        """Return the value's quantile."""
        return float(ndtr((value - self.mean) / self.sd)) if _is_number(value) else None

    def value(self, coordinate: float) -> Any:
        """Return the number at a quantile, rounded as the domain asks."""
        found = self.mean + self.sd * float(ndtri(min(max(coordinate, _INSIDE), 1 - _INSIDE)))
        return found if self.step is None else float(round(found / self.step) * self.step)


@dataclass(frozen=True)
class QuantileAxis:
    """A domain that is known by its quantiles."""

    domain: Quantiles
    columns: int = 1

    def coordinate(self, value: Any) -> float | None:
        """Return the value's quantile."""
        return self.domain.quantile(value)

    def value(self, coordinate: float) -> Any:
        """Return the value at a quantile."""
        return self.domain.value(coordinate)


@dataclass(frozen=True)
class ChoiceAxis:
    """One of several values. ``ordered``: a model sees their order, in one column; else a column for each value."""

    values: tuple[Any, ...]
    ordered: bool

    @property
    def columns(self) -> int:
        """One column, or one for each value."""
        return 1 if self.ordered else len(self.values)

    def coordinate(self, value: Any) -> float | None:
        """Return the middle of the value's part of [0, 1]."""
        found = next((at for at, one in enumerate(self.values) if type(one) is type(value) and one == value), None)
        return None if found is None else (found + 0.5) / len(self.values)

    def value(self, coordinate: float) -> Any:
        """Return the value in whose part the coordinate is."""
        return self.values[min(int(coordinate * len(self.values)), len(self.values) - 1)]

    def one_hot(self, coordinates: np.ndarray) -> np.ndarray:
        """Return a column for each value [n, values]; all are 0 where a coordinate is NaN."""
        known = ~np.isnan(coordinates)
        places = np.minimum((np.where(known, coordinates, 0) * len(self.values)).astype(int), len(self.values) - 1)
        shown = np.zeros((len(coordinates), len(self.values)))
        shown[np.flatnonzero(known), places[known]] = 1.0
        return shown


def axis_of(domain: Any) -> Axis | None:
    """Return a domain's axis; None for functions, users' own domains, and what has a single value."""
    if isinstance(domain, Quantiles):
        return QuantileAxis(domain)
    name, arguments = spell(domain)
    match name, arguments:
        case (("choice" | "ordinal" | "grid_search"), [values]) if len(values) > 1:
            values = sorted(values) if _numbers(values) else values
            return ChoiceAxis(tuple(values), name == "ordinal" or _numbers(values))
        case (("uniform" | "quniform"), [low, high, *step]):
            return NumberAxis(low, high, step=step[0] if step else None)
        case (("loguniform" | "qloguniform"), [low, high, *step]):
            return NumberAxis(low, high, log=True, step=step[0] if step else None)
        case (("randint" | "lograndint"), [low, high]) if high - low > 1:
            return NumberAxis(low, high, log=name == "lograndint", whole=True)
        case (("qrandint" | "qlograndint"), [low, high, step]) if high > low:
            return NumberAxis(low, high, log=name == "qlograndint", whole=True, step=step)
        case (("randn" | "qrandn"), [mean, sd, *step]):
            return NormalAxis(mean, sd, step[0] if step else None)
    return None


def _numbers(values: Sequence[Any]) -> bool:
    return len(values) > 2 and all(_is_number(value) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Encoder:
    """Maps configurations of a space to points and back.

    A point has a coordinate in [0, 1] for each key that has an axis, NaN where the key is not in the configuration.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.axes: dict[str, Axis] = {
            key: axis for key, domain in space.domains.items() if (axis := axis_of(domain)) is not None
        }
        self.places = {key: place for place, key in enumerate(self.axes)}
        self.groups = np.repeat(np.arange(len(self.axes)), [axis.columns for axis in self.axes.values()])
        """For each column that a model sees, the number of its key."""

    def point(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the point of a configuration by dotted key, [keys]."""
        found = [axis.coordinate(values[key]) if key in values else None for key, axis in self.axes.items()]
        return np.array([math.nan if one is None else one for one in found])

    def values(self, point: np.ndarray, rng: np.random.RandomState, grid_index: int = 0) -> dict[str, Any]:
        """Return the configuration of a point by dotted key; keys without an axis are drawn."""

        def choose(key: str, domain: Any) -> Any:
            place = self.places.get(key)
            if place is None or math.isnan(point[place]):
                return domain.sample(random_state=rng)
            return self.axes[key].value(float(point[place]))

        return self.space.draw(choose, grid_index)

    def columns(self, points: np.ndarray) -> np.ndarray:
        """Return what a model sees of points [n, keys]: [n, columns]."""
        parts: list[np.ndarray] = []
        for place, axis in enumerate(self.axes.values()):
            coordinates = points[:, place]
            if isinstance(axis, ChoiceAxis) and not axis.ordered:
                parts.append(axis.one_hot(coordinates))
            else:
                parts.append(np.where(np.isnan(coordinates), 0.5, coordinates)[:, None])
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(points), 0))
