"""Random (and grid) search: independent draws from the space, by a seeded generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.searchers.tried import Tried, endless
from tunelight.space import SearchSpace

# --- TrackingSearcher: a Searcher of a sweep, which is told of all of its trials ------------------


class TrackingSearcher(Searcher):
    """A Searcher that tracks every trial, including those that it did not suggest, and how each one ended.

    ``notes``: remarks for the person who runs the sweep; ``learns``: whether earlier trials make a difference to it;
    ``sweeps``: the earlier sweeps that it has learned from.
    """

    notes: Sequence[str] = ()
    learns = False
    sweeps: Sequence[Path] = ()
    _seen = 0

    def _number(self, trial_id: str) -> int:
        """Return the trial's number: its id in a sweep, else counted here."""
        number = int(trial_id) if trial_id.isdecimal() else self._seen
        self._seen = max(self._seen, number + 1)
        return number

    def close(self, states: Mapping[str, str]) -> None:
        """End with the sweep; ``states``: trial id -> recorded state."""

    def take(self, trial_id: str, config: Mapping[str, Any], *, asked: bool = False) -> None:
        """Add a trial that it did not suggest in this run: a baseline, or (``asked``) an earlier run's suggestion."""
        raise NotImplementedError

    def end(self, trial_id: str, state: str, result: Mapping[str, Any] | None = None) -> None:
        """Learn how a trial ended, by its recorded state; ``result``: its last report, if any."""
        raise NotImplementedError


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


# --- GridSearcher: every configuration of a finite space, in order --------------------------------


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
