"""What earlier sweeps say of configurations, each weighted by how well it predicts the trials of this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy import optimize

from tunelight.searchers.earlier import MOST
from tunelight.searchers.encoding import Encoder
from tunelight.searchers.surrogate import GaussianProcess, scores_of, spread

_FEWEST: Final = 5
"""Trials of an earlier sweep from which on it is modelled."""
_BEST: Final = 3
"""Configurations of each earlier sweep near which candidates are looked for."""
_BELIEF: Final = 3.0
"""How many trials of this sweep, roughly, weigh as much as the belief that all earlier sweeps predict it."""


class EarlierSweeps:
    """A model of each earlier sweep, over the space of this one.

    Args:
        encoder: of this sweep's space.
        sweeps: points [trials, keys] and losses [trials] of each earlier sweep, of which the last 20 are modelled; NaN
            where a trial has no such key.
    """

    def __init__(self, encoder: Encoder, sweeps: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> None:
        self._models: list[GaussianProcess] = []
        best = [np.zeros((0, len(encoder.axes)))]
        for points, losses in sweeps[-MOST:]:
            if len(losses) >= _FEWEST:
                order, scores = scores_of(losses)
                used = spread(order)
                self._models.append(GaussianProcess(encoder.columns(points[used]), scores[used], encoder.groups))
                best.append(points[order[:_BEST]])
        self.best = np.concatenate(best)
        """The best points of all sweeps, [points, keys]."""

    def __len__(self) -> int:
        return len(self._models)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Return what each sweep expects of points [n, columns]: scores [sweeps, n]."""
        return np.array([model.mean(x) for model in self._models]).reshape(len(self._models), len(x))

    def weights(self, x: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return each sweep's weight [sweeps], none negative, by least squares on this sweep's scores [n] at points.

        Without trials the weights are equal; the more trials there are, the more they decide.
        """
        count = len(self._models)
        belief = np.full(count, 1 / max(count, 1))
        if not count or not len(scores):
            return belief
        expected = self.expected(x)
        centred = (expected - expected.mean(1, keepdims=True)).T
        root = _BELIEF**0.5
        left = np.concatenate((centred, root * np.eye(count)))
        right = np.concatenate((scores - scores.mean(), root * belief))
        found: np.ndarray = optimize.nnls(left, right)[0]
        return found
