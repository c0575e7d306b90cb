"""GridSearcher: every configuration of a finite space, in order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.searchers.random import BlindSearcher
from tunelight.space import SearchSpace
from tunelight.space.domains import spell, whole_bounds


class GridSearcher(BlindSearcher):
    """Suggest each configuration once, the last key changing fastest.

    Domains may be ``choice``, ``grid``, ``randint``, ``qrandint`` and ``quniform``. With conditions, a value decides
    which keys follow: the configurations are the leaves of a tree, visited from left to right. Those that break a
    constraint of the space are left out. Raises: SettingsError, naming the keys with infinitely many values.
    """

    def __init__(self, space: SearchSpace, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__(metric=metric, mode=mode)
        self._space = space
        self._values = {key: _values(domain) for key, domain in space.domains.items()}
        if endless := [key for key, values in self._values.items() if values is None]:
            raise SettingsError(
                f"searcher='grid' tries every value, and {', '.join(endless)} has no end of them. Give it a list "
                "(choice, grid), whole numbers (randint) or steps (quniform), or choose searcher='sobol' or 'random'."
            )
        self._grid_index = 0
        self._path: list[int] | None = []

    def suggest(self, trial_id: str) -> Any:
        """Return the next configuration, or FINISHED."""
        while self._path is not None:
            values = self._leaf()
            if self._space.broken(values) is None:
                return self._space.written(values)
        return Searcher.FINISHED

    def _leaf(self) -> dict[str, Any]:
        """Return the values of the next leaf, which may break a constraint."""
        taken: list[tuple[int, int]] = []
        values = self._space.draw(functools.partial(self._pick, taken), self._grid_index)
        self._step(taken)
        return values

    def count(self, most: int) -> tuple[int, bool]:
        """Return how many configurations are left, and whether these are all: at most ``most`` leaves are visited.

        Afterwards those are passed.
        """
        visited = found = 0
        while self._path is not None and visited < most:
            visited += 1
            found += self._space.broken(self._leaf()) is None
        return found, self._path is None

    def _pick(self, taken: list[tuple[int, int]], key: str, domain: Any) -> Any:
        """Return a key's value on the path (beyond it: the first); add its index and their number to ``taken``."""
        values = self._values[key] or []
        path = self._path or []
        at = path[len(taken)] if len(taken) < len(path) else 0
        taken.append((at, len(values)))
        return values[at]

    def _step(self, taken: list[tuple[int, int]]) -> None:
        """Move to the next leaf; after the last one, to the next point of the grid axes."""
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if taken:
            self._path = [at for at, _ in taken[:-1]] + [taken[-1][0] + 1]
            return
        self._grid_index += 1
        self._path = [] if self._grid_index < self._space.grid_size else None


def _values(domain: Any) -> Sequence[Any] | None:
    """Return all values of a domain; None where they have no end. Fixed ones and functions are not chosen."""
    name, arguments = spell(domain)
    if name in ("fixed", "sample_from"):
        return []
    match name, arguments:
        case (("choice" | "ordinal" | "grid_search"), [values]):
            return list(values)
        case (("randint" | "qrandint"), [low, high, *q]):
            first, last = whole_bounds(low, high, *q)
            return range(first, last + 1, *q)
        case "quniform", [low, high, q]:
            return [low + q * index for index in range(round((high - low) / q) + 1)]
    return None
