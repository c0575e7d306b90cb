"""A Gaussian process for small numbers of points, with a length scale for each key of a search space.

Rasmussen and Williams, "Gaussian Processes for Machine Learning" (https://gaussianprocess.org/gpml/), chapters 2 and 5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from scipy import linalg, optimize
from scipy.special import ndtri
from threadpoolctl import ThreadpoolController

_ITERATIONS: Final = 12
_JITTER: Final = 1e-4
_MEANS: Final = (0.0, 0.0, -2.0)
_SPREADS: Final = (1.0, 1.0, 1.5)
"""Prior of the logarithms of length scales, amplitude and noise: means and standard deviations."""
_START: Final = (-0.3, 0.0, -2.0)
_MODELLED: Final = 120
"""The largest number of trials that a model is fitted to."""
_BELIEF: Final = 3.0
"""How many trials, roughly, weigh as much as the belief that all earlier sweeps predict the new one."""


@functools.cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")


def one_thread() -> Any:
    """Return a context in which one thread works on matrices.

    They are small here; where training keeps the cores busy, a second thread makes them take twenty times as long.
    """
    return _blas().limit(limits=1)


def scores_of(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of losses [n], best first, and each one's quantile of a normal distribution by its rank."""
    order = np.argsort(losses, kind="stable")
    scores = np.empty(len(losses))
    scores[order] = ndtri((np.arange(len(losses)) + 0.5) / max(len(losses), 1))
    return order, scores


def spread(order: np.ndarray) -> np.ndarray:
    """Return at most 120 of the trials, best first: the best 60, and the others evenly spaced among the rest."""
    if len(order) <= _MODELLED:
        return order
    half = _MODELLED // 2
    return np.concatenate((order[:half], order[np.linspace(half, len(order) - 1, half).astype(int)]))


class GaussianProcess:
    """A Matern 5/2 process over columns in [0, 1], whose hyperparameters maximize the posterior.

    Deterministic: it depends on the data alone, and the search for hyperparameters always starts at the same place.

    Args:
        x: columns, [n, columns].
        y: targets of about unit scale, [n].
        groups: the number of each column's key; columns of a key share a length scale.
        trend: the values expected of points before any target is known, [n, columns] to [n] (None: a constant).
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        groups: np.ndarray,
        trend: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._groups = groups
        self._trend = trend or (lambda x: np.zeros(len(x)))
        residuals = y - self._trend(x)
        self._mean = float(residuals.mean()) if len(y) else 0.0
        self._x, self._y = x, residuals - self._mean
        self._fit(int(groups.max()) + 1 if len(groups) else 0)
        self._factor()

    def add(self, x: np.ndarray) -> None:
        """Add pending points with predicted values, so that the next suggestion lies elsewhere."""
        self._y = np.concatenate((self._y, self._kernel(self._x, x).T @ self._weights))
        self._x = np.concatenate((self._x, x))
        self._factor()

    def posterior(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation without noise at points [n, columns]: [n] each."""
        cross = self._kernel(self._x, x)
        mean = self._mean + self._trend(x) + cross.T @ self._weights
        explained = linalg.solve_triangular(self._lower, cross, lower=True) if len(self._y) else cross
        variance = self._amplitude - np.einsum("ij,ij->j", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 1e-9))

    def _kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        scaled, others = a / self._scales, b / self._scales
        square = (scaled**2).sum(1)[:, None] + (others**2).sum(1)[None] - 2 * scaled @ others.T
        distance = np.sqrt(5 * np.maximum(square, 0))
        result: np.ndarray = self._amplitude * (1 + distance + distance**2 / 3) * np.exp(-distance)
        return result

    def _factor(self) -> None:
        if not len(self._y):
            self._lower, self._weights = np.zeros((0, 0)), np.zeros(0)
            return
        gram = self._kernel(self._x, self._x) + self._noise * np.eye(len(self._y))
        self._lower = linalg.cholesky(gram, lower=True)
        self._weights = linalg.cho_solve((self._lower, True), self._y)

    def _fit(self, keys: int) -> None:
        """Set the hyperparameters at the maximum of their posterior, by L-BFGS with the gradient."""
        n = len(self._y)
        at = np.repeat(_START, (keys, 1, 1))
        if n:
            square = np.zeros((keys, n, n))
            for column, key in enumerate(self._groups):
                square[key] += (self._x[:, None, column] - self._x[None, :, column]) ** 2
            at = optimize.minimize(
                functools.partial(_posterior_loss, square.reshape(keys, n * n), self._y),
                at,
                jac=True,
                method="L-BFGS-B",
                bounds=[(-3.0, 4.0)] * keys + [(-4.0, 3.0), (-7.0, 1.0)],
                options={"maxiter": _ITERATIONS},
            ).x
        self._scales = np.exp(at[:keys])[self._groups]
        self._amplitude = math.exp(at[keys])
        self._noise = math.exp(at[keys + 1]) + _JITTER


def _posterior_loss(square: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the negative log posterior of hyperparameters and its gradient.

    Args:
        square: squared distances by key, [keys, n * n].
        y: targets, [n].
        at: logarithms of length scales, amplitude and noise, [keys + 2].
    """
    n, keys = len(y), len(square)
    inverse, amplitude, noise = np.exp(-2 * at[:keys]), math.exp(at[keys]), math.exp(at[keys + 1])
    distance = np.sqrt(5 * (inverse @ square)).reshape(n, n)
    decay = np.exp(-distance)
    gram = amplitude * (1 + distance + distance**2 / 3) * decay
    identity = np.eye(n)
    lower = linalg.cholesky(gram + (noise + _JITTER) * identity, lower=True, check_finite=False)
    weights = linalg.cho_solve((lower, True), y, check_finite=False)
    pull = np.outer(weights, weights) - linalg.cho_solve((lower, True), identity, check_finite=False)
    slope = np.empty_like(at)
    slope[:keys] = -5 / 6 * amplitude * (square @ (pull * (1 + distance) * decay).ravel()) * inverse
    slope[keys] = -0.5 * (pull * gram).sum()
    slope[keys + 1] = -0.5 * noise * np.trace(pull)
    spreads = np.repeat(_SPREADS, (keys, 1, 1))
    off = (at - np.repeat(_MEANS, (keys, 1, 1))) / spreads
    value = 0.5 * y @ weights + np.log(np.diag(lower)).sum() + 0.5 * off @ off
    return float(value), slope + off / spreads


class EarlierSweeps:
    """A model of each earlier sweep: columns [n, columns] and losses [n]."""

    def __init__(self, sweeps: Sequence[tuple[np.ndarray, np.ndarray]], groups: np.ndarray) -> None:
        self._models: list[GaussianProcess] = []
        for x, losses in sweeps:
            order, scores = scores_of(losses)
            used = spread(order)
            self._models.append(GaussianProcess(x[used], scores[used], groups))

    def __len__(self) -> int:
        return len(self._models)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Return the scores that each sweep predicts at points [n, columns]: [sweeps, n]."""
        return np.array([model.posterior(x)[0] for model in self._models])

    def weights(self, x: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return each sweep's weight [sweeps], none negative, by least squares on the new sweep's scores [n].

        Without trials the weights are equal; the more trials there are, the more they decide.
        """
        count = len(self._models)
        belief = np.full(count, 1 / count)
        if not len(scores):
            return belief
        expected = self.expected(x)
        centred = (expected - expected.mean(1, keepdims=True)).T
        left = np.concatenate((centred, _BELIEF**0.5 * np.eye(count)))
        right = np.concatenate((scores - scores.mean(), _BELIEF**0.5 * belief))
        found: np.ndarray = optimize.nnls(left, right)[0]
        return found
