"""What the searchers that learn have in common: a space, what trials are judged by, a seed, and numbered trials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunelight.errors import SettingsError
from tunelight.searchers.earlier import Earlier
from tunelight.searchers.random import generator
from tunelight.searchers.tracking import TrackingSearcher
from tunelight.searchers.tried import Tried
from tunelight.settings import Mode, paired
from tunelight.space import SearchSpace


class LearningSearcher(TrackingSearcher):
    """A TrackingSearcher that suggests configurations of a space by what its trials have reported.

    Args:
        space, metric, mode: of the sweep; what is missing is taken from Tune.
        seed: of all draws (None: 0).
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, Any] | None,
        metric: str | Sequence[str] | None,
        mode: Mode | Sequence[Mode] | None,
        seed: int | None,
    ) -> None:
        super().__init__()
        self._space = None if space is None else SearchSpace.of(space)
        self._objectives = paired(metric, mode)
        self._metric, self._mode = self._objectives[0] if self._objectives else (None, None)
        self._seed = seed
        self.learns = True
        """Whether earlier trials make a difference to it."""
        self.notes: list[str] = []
        self.sweeps: Sequence[Path] = ()

    @property
    def _began(self) -> bool:
        """Whether metric, mode and space are in use, and must not change any more."""
        raise NotImplementedError

    def learn(self, earlier: Sequence[Earlier]) -> int:
        """Learn from trials of earlier sweeps, by the keys that both spaces have; return how many said something."""
        raise NotImplementedError

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Take metric, mode and space from Tune where they are missing; return False once the search has begun."""
        if self._began:
            return False
        if metric is not None and not self._objectives:
            self._objectives = paired(metric, "max" if mode == "max" else "min")
            self._metric, self._mode = self._objectives[0]
        if config and self._space is None:
            self._space = SearchSpace.of(config)
        return True

    @property
    def space(self) -> SearchSpace:
        """The search space. Raises: SettingsError if there is none yet."""
        if self._space is None:
            raise SettingsError(f"{type(self).__name__} has nothing to search. Give it space=.")
        return self._space

    @functools.cached_property
    def tried(self) -> Tried:
        """What the sweep has tried. Raises: SettingsError if there is no space yet."""
        return Tried(self.space)

    def _drawn_afresh(self, number: int, begin: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return ``begin``'s configuration by dotted key, or a random one where that was tried; None if all were."""
        space, point = self.space, self.tried.point()

        def draw(attempt: int) -> dict[str, Any]:
            again = (self._seed or 0, number, *([attempt] if attempt else []))
            return begin() if not attempt else space.dotted(space.sample(generator(*again), point))

        return self.tried.fresh(draw)
