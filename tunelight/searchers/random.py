"""Random (and grid) search: independent draws from the space, by a seeded generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from ray.tune.search import Searcher

from tunelight.errors import SettingsError
from tunelight.space import SearchSpace
from tunelight.space.plain import alike

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
        values = self.tried.fresh(self._seed, self._number(trial_id) - self._given)
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


# --- Tried: what a sweep has trained, so that no point of its grid is passed over, and no configuration comes twice

_REDRAWN: Final = 20
"""How often a configuration that was tried is drawn again, before the next one in order is taken."""
_VISITED: Final = 10_000
"""How many leaves of a finite space are visited at a time: constraints may allow few of very many."""

Values = dict[str, Any]


class Tried:
    """The configurations that a sweep has tried, by dotted key.

    In a space with finitely many of them, none is to be trained twice. A space of grid axes alone is gone through as
    often as it is asked to be, and one without a choice trains its one configuration again and again.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._known: set[str] = set()
        self._leaves: Iterator[Values | None] | None = None  # a generator cannot be pickled with its searcher
        self._made: Counter[int] = Counter()
        self._round = self._at = 0
        self.once = is_finite(space)
        """Whether no configuration is to be trained twice."""

    def add(self, values: Mapping[str, Any]) -> None:
        """Take a configuration that a trial has, whoever suggested it."""
        self._known.add(alike(values))
        if (point := self._space.grid_point(values)) is not None:
            self._made[point] += 1

    def __contains__(self, values: Mapping[str, Any]) -> bool:
        return alike(values) in self._known

    def point(self) -> int:
        """Return the point of the grid that fewest trials have, the first of those."""
        while self._made[self._at] > self._round:
            self._at += 1
            if self._at == self._space.grid_size:
                self._at, self._round = 0, self._round + 1
        return self._at

    def fresh(self, seed: int, number: int) -> Values | None:
        """Return random draw ``number`` of a seed, drawn again where that was tried; None if none is left."""
        point = self.point()

        def draw(*attempt: int) -> Values:
            return self._space.dotted(self._space.sample(generator(seed, number, *attempt), point))

        values = draw()
        if not self.once or values not in self:
            return values
        for attempt in range(1, _REDRAWN):
            if (again := draw(attempt)) not in self:
                return again
        return self.next(values)

    def next(self, otherwise: Values | None = None) -> Values | None:
        """Return the first configuration, in order, that was not tried; None where all were.

        ``otherwise``: what is returned where very many in a row break the space's constraints.
        """
        self._leaves = self._space.every() if self._leaves is None else self._leaves
        for visited, values in enumerate(self._leaves):
            if values is not None and values not in self:
                return values
            if visited > _VISITED and otherwise is not None:
                return otherwise
        return None


def all_of(space: SearchSpace, enough: int) -> tuple[set[str], bool]:
    """Return the configurations of a finite space, as :func:`alike` writes them, and whether these are all.

    No more than ``enough`` are looked for, nor 10,000 leaves visited.
    """
    found: set[str] = set()
    for visited, values in enumerate(space.every()):
        if visited == _VISITED or len(found) > enough:
            return found, False
        if values is not None:
            found.add(alike(values))
    return found, True


def endless(space: SearchSpace) -> list[str]:
    """Return the keys of a space that have no end of values."""
    return [key for key, kind in space.kinds.items() if kind.values(space.domains[key]) is None]


def is_finite(space: SearchSpace) -> bool:
    """Tell whether a space has an end of configurations, and a choice among them that is no axis of its grid."""
    functions = any(kind.role == "function" for kind in space.kinds.values())
    drawn = [kind.values(space.domains[key]) for key, kind in space.kinds.items() if kind.role == "drawn"]
    return not functions and None not in drawn and any(len(values or ()) > 1 for values in drawn)
