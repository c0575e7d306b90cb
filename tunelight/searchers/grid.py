"""GridSearcher: every configuration of a finite space, in order."""

from __future__ import annotations

from typing import Any

from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.searchers.random import BlindSearcher
from tunelight.searchers.tried import endless
from tunelight.space import SearchSpace


class GridSearcher(BlindSearcher):
    """Suggest each configuration once, the last key changing fastest; those that were tried already are left out.

    Domains may be ``choice``, ``grid``, whole numbers and steps. What breaks a constraint of the space is left out.
    Raises: SettingsError, naming the keys with infinitely many values.
    """

    def __init__(self, space: SearchSpace, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__(space, metric, mode)
        if keys := endless(space):
            raise SettingsError(
                f"searcher='grid' tries every value, and {', '.join(keys)} has no end of them. Give it a list "
                "(choice, grid), whole numbers (randint) or steps (quniform), or choose searcher='sobol' or 'random'."
            )

    def suggest(self, trial_id: str) -> Any:
        """Return the next configuration, or FINISHED."""
        values = self.tried.next()
        return Searcher.FINISHED if values is None else self._begin(values)
