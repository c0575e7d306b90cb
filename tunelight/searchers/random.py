"""Random (and grid) search: independent draws from the space, by a seeded generator."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.tune.search import Searcher

from tunelight.space import SearchSpace


def generator(*words: int) -> np.random.RandomState:
    """Return a random generator that is seeded by ``words``."""
    return np.random.RandomState(np.random.SeedSequence(words).generate_state(4))


class BlindSearcher(Searcher):
    """A Searcher that learns nothing, and whose position follows from the number of its suggestions."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class RandomSearcher(BlindSearcher):
    """Draw each configuration independently; values of a grid axis come in order.

    Draw i depends on ``seed`` and i alone, so that a sweep that is extended keeps its first draws.
    """

    def __init__(self, space: SearchSpace, seed: int, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__(metric=metric, mode=mode)
        self._space = space
        self._seed = seed
        self._drawn = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the next configuration."""
        rng = generator(self._seed, self._drawn)
        config = self._space.sample(rng, grid_index=self._drawn % self._space.grid_size)
        self._drawn += 1
        return config
