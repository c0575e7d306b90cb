"""Random (and grid) search: independent draws from the space, by a seeded generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.tune.search import Searcher

from tunelight.searchers.tracking import TrackingSearcher
from tunelight.searchers.tried import Tried
from tunelight.space import SearchSpace


def generator(*words: int) -> np.random.RandomState:
    """Return a random generator that is seeded by ``words``."""
    return np.random.RandomState(np.random.SeedSequence(words).generate_state(4))


class BlindSearcher(TrackingSearcher):
    """A searcher of a sweep that learns nothing but what was tried."""

    def __init__(self, space: SearchSpace, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__(metric=metric, mode=mode)
        self._space = space
        self._seen = 0
        self.tried = Tried(space)

    def _begin(self, values: dict[str, Any]) -> dict[str, Any]:
        self.tried.add(values)
        return self._space.written(values)

    def take(self, trial_id: str, config: Mapping[str, Any], *, asked: bool = False) -> None:
        """Add a trial that it did not suggest in this run."""
        self._number(trial_id)
        self.tried.add(self._space.dotted(config))

    def end(self, trial_id: str, state: str, result: Mapping[str, Any] | None = None) -> None:
        """Learn nothing."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class RandomSearcher(BlindSearcher):
    """Draw each configuration independently; values of a grid axis come in order.

    Draw i depends on ``seed`` and i alone, so that a sweep that is extended keeps its first draws; of finitely many
    configurations, one that was tried is drawn again.
    """

    def __init__(self, space: SearchSpace, seed: int, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__(space, metric, mode)
        self._seed = seed
        self._given = 0
        """How many trials had a configuration that was given, as baselines have."""

    def take(self, trial_id: str, config: Mapping[str, Any], *, asked: bool = False) -> None:
        """Add a trial that it did not suggest in this run."""
        super().take(trial_id, config, asked=asked)
        self._given += not asked

    def suggest(self, trial_id: str) -> Any:
        """Return the next configuration, or FINISHED."""
        number, point = self._number(trial_id) - self._given, self.tried.point()
        values = self.tried.fresh(
            lambda attempt: self._space.dotted(
                self._space.sample(generator(self._seed, number, *([attempt] if attempt else [])), point)
            )
        )
        return Searcher.FINISHED if values is None else self._begin(values)
