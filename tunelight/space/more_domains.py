"""What Ray Tune's domains lack: fixed values, ordered choices, and grids and functions as a file describes them.

Functions are named as the rows of :mod:`tunelight.space.kinds`; each returns a Ray Tune Domain, so that searchers and
schedulers that know Ray's know these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.search import sample

from tunelight.settings import load_object


class Fixed(sample.Categorical):
    """One value, which is drawn without asking a generator."""

    kind = "fixed"

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Return the value; ``size`` times, as a list, where that is more than 1."""
        (value,) = self.categories
        return value if size == 1 else [value] * size


class Ordinal(sample.Categorical):
    """A choice among values that have an order, each as likely as the others."""

    kind = "ordinal"


class Axis(sample.Categorical):
    """An axis of a grid, as Ray Tune makes it of {"grid_search": [...]}, but that values can be drawn from it."""

    kind = "grid_search"

    def is_grid(self) -> bool:
        """Return True."""
        return True


def fixed(value: Any) -> Fixed:
    """Return a domain of one value."""
    return Fixed([value])


def ordinal(categories: Sequence[Any]) -> Ordinal:
    """Return a choice among values that have an order, as sizes do: a neighbour is nearer than another."""
    return Ordinal(categories)


grid = grid_search = Axis


def sample_from(function: str | Callable[..., Any]) -> sample.Function:
    """Return the domain of a function, or of that at an import path. Raises: ImportPathError."""
    return sample.Function(load_object(function) if isinstance(function, str) else function)


def wandb_parameter(written: Any) -> sample.Domain:
    """Return the domain of a parameter of a W&B sweep."""
    from tunelight.extras.wandb import OfWandb

    return OfWandb(written)
