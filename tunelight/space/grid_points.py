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
    """The points of ``axes``, values by dotted key; the last axis moves first.

    ``kept`` returns what is left of a point, or None if it is none; without it, every combination is one. Points that
    have become the same are one. Raises: SpaceError where there are too many combinations to go through.
    """

    def __init__(self, axes: Mapping[str, Sequence[Any]], kept: Callable[[Point], Point | None] | None = None) -> None:
        self._axes = {key: list(values) for key, values in axes.items()}
        self.size = math.prod(len(values) for values in self._axes.values())
        self._points: list[Point] | None = None
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

    def point(self, index: int) -> Point:
        """Return point ``index``, from 0."""
        if self._points is not None:
            return self._points[index]
        point: Point = {}
        for key, values in reversed(self._axes.items()):
            index, position = divmod(index, len(values))
            point[key] = values[position]
        return point
