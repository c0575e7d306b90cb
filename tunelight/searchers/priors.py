"""Draws near the values that a search space names by ``around``, as often as they prove good.

A simple form of the mixture of Mallik, Bergman, Hvarfner, Stoll, Janowski, Lindauer, Nardi and Hutter, "PriorBand:
Practical Hyperparameter Optimization in the Age of Deep Learning" (https://arxiv.org/abs/2306.12370).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tunelight.searchers.random import generator
from tunelight.space import SearchSpace
from tunelight.space.more_domains import prior

_MOST: Final = 0.5
_LEAST: Final = 0.05
"""Bounds of the share of draws from the prior."""
_ENOUGH: Final = 10
"""Trials with a result before the share follows from results."""
_STREAM: Final = 2
"""Keeps the generator that decides apart from those that draw."""


def has_priors(space: SearchSpace) -> bool:
    """Tell whether a space names any value by ``around``."""
    return any(prior(domain) is not None for domain in space.domains.values())


class PriorDraws:
    """Decides which trials are drawn from the priors of a space, and draws them.

    Half of the trials at first; then the share that such draws have among the best quarter of all trials, between 0.05
    and 0.5. So a good prior is followed, and a misleading one costs little. Decision n depends on the seed, n, and the
    results so far.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._seed = seed
        self.active = has_priors(space)
        """Whether the space names any value by ``around``."""
        self._drawn: dict[str, bool] = {}
        self._losses: dict[str, float] = {}

    def draw(self, number: int, grid_index: int = 0) -> dict[str, Any]:
        """Return trial ``number``'s draw from the priors, which is also what random search would try."""
        return self._space.sample(generator(self._seed, number), grid_index)

    def has_turn(self, number: int) -> bool:
        """Tell whether trial ``number`` is to be drawn from the priors."""
        return self.active and generator(self._seed, number, _STREAM).random_sample() < self.share()

    def share(self) -> float:
        """Return the share of trials that are drawn from the priors now."""
        if len(self._losses) < _ENOUGH:
            return _MOST
        ranked = sorted(self._losses, key=self._losses.__getitem__)
        best = ranked[: max(3, len(ranked) // 4)]
        return min(max(sum(self._drawn[trial_id] for trial_id in best) / len(best), _LEAST), _MOST)

    def began(self, trial_id: str, number: int, config: Mapping[str, Any], grid_index: int | None = 0) -> None:
        """Note a trial; also one of an earlier run, which came from the priors if its configuration is their draw."""
        if self.active:
            self._drawn[trial_id] = config == self.draw(number, grid_index or 0)

    def reported(self, trial_id: str, loss: float) -> None:
        """Note the best loss of a trial so far; infinite where its configuration cannot be trained."""
        if trial_id in self._drawn and not math.isnan(loss):
            self._losses[trial_id] = loss
