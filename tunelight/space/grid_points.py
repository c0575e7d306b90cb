"""The points of a search space's grid: all combinations of its axes that conditions and constraints allow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tunelight.errors import SpaceError

_MOST: Final = 100_000
"""The largest number of combinations that are checked one by one."""

Point = dict[str, Any]


class Grid:
    """The points of ``axes``, values by dotted key, those that are alike once; the last axis moves first.

    ``kept`` returns what is left of a point, or None if it is none; without it, every combination is one. Points that
    have become the same are one. Raises: SpaceError where there are too many combinations to go through.
    """

    def __init__(self, axes: Mapping[str, Sequence[Any]], kept: Callable[[Point], Point | None] | None = None) -> None:
        self._axes = {key: list({alike(one): one for one in values}.values()) for key, values in axes.items()}
        self.size = math.prod(len(values) for values in self._axes.values())
        self._points: list[Point] | None = None
        self._indices: dict[str, int] = {}
        if kept is None or not axes:
            return
        if self.size > _MOST:
            raise SpaceError(
                f"The grid has {self.size:,} combinations, and {_MOST:,} are the most where conditions or constraints "
                "leave some out. Take values from its axes, or make some of them choices."
            )
        points: dict[str, Point] = {}
        for values in itertools.product(*self._axes.values()):
            if (point := kept(dict(zip(self._axes, values, strict=True)))) is not None:
                points.setdefault(repr(point), point)
        self._points = list(points.values())
        self.size = len(self._points)

    def index(self, values: Mapping[str, Any]) -> int | None:
        """Return the index of the point that a configuration has; None where it is none of the grid's."""
        if self._points is not None:
            if not self._indices:
                self._indices = {alike(point): index for index, point in enumerate(self._points)}
            return self._indices.get(alike({key: values[key] for key in self._axes if key in values}))
        index = 0
        for key, axis in self._axes.items():
            told = alike(values[key]) if key in values else None
            place = next((place for place, value in enumerate(axis) if alike(value) == told), None)
            if place is None:
                return None
            index = index * len(axis) + place
        return index

    def point(self, index: int) -> Point:
        """Return point ``index``, from 0."""
        if self._points is not None:
            return self._points[index]
        point: Point = {}
        for key, values in reversed(self._axes.items()):
            index, position = divmod(index, len(values))
            point[key] = values[position]
        return point


def alike(value: Any) -> str:
    """Return text that equal values share: 1 and 1.0 do, 1 and True do not, nor do numbers and text."""
    if isinstance(value, Mapping):
        return repr(sorted((str(key), alike(one)) for key, one in value.items()))
    if isinstance(value, list | tuple):
        return repr([alike(one) for one in value])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if isinstance(value, int) else f"{value:.0f}" if value.is_integer() else f"{value:.12g}"
    return repr(value)
