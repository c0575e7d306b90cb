"""A Gaussian process for small numbers of points, with a length scale for each key of a search space.

Rasmussen and Williams, "Gaussian Processes for Machine Learning" (https://gaussianprocess.org/gpml/), chapters 2 and 5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
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


@functools.cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")


def one_thread() -> Any:
    """Return a context in which matrices are worked on by one thread.

    They are small here; where training keeps the cores busy, a second thread makes them take twenty times as long.
    """
    return _blas().limit(limits=1)


def scores_of(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of losses [n], best first, and each one's quantile of a normal distribution by its rank."""
    order = np.argsort(losses, kind="stable")
    scores = np.empty(len(losses))
    scores[order] = ndtri((np.arange(len(losses)) + 0.5) / max(len(losses), 1))
    return order, scores


def spread(order: np.ndarray, count: int = _MODELLED) -> np.ndarray:
    """Return ``count`` of the trials, best first: the better half of the count, and the others evenly from the rest."""
    if len(order) <= count:
        return order
    rest = order[count // 2 :]
    chosen = np.linspace(0, len(rest) - 1, count - count // 2).astype(int)
    return np.concatenate((order[: count // 2], rest[chosen]))


class GaussianProcess:
    """A Matern 5/2 process over columns in [0, 1], whose hyperparameters maximize the posterior.

    Deterministic: it depends on the data alone, and the search for hyperparameters always starts at the same place.

    Args:
        x: columns, [n, columns].
        y: targets of about unit scale, [n].
        groups: the number of each column's key; columns of a key share a length scale.
        trend: what is expected of points before any target is known, [n, columns] to [n] (None: the same of all).
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        groups: np.ndarray,
        trend: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._groups = groups
        self._trend = trend
        rest = y - self._expected(x)
        self._mean = float(rest.mean()) if len(y) else 0.0
        self._x, self._y = x, rest - self._mean
        self._count = int(groups.max()) + 1 if len(groups) else 0
        self._find()
        self._factor()

    def add(self, x: np.ndarray) -> None:
        """Add points as if they had the values that are expected of them, so that others are chosen beside them."""
        if len(x):
            rest = self._kernel(self._x, x).T @ self._weights
            self._x = np.concatenate((self._x, x))
            self._y = np.concatenate((self._y, rest))
            self._factor()

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Return the mean at points [n, columns]: [n]."""
        found: np.ndarray = self._mean + self._expected(x) + self._kernel(self._x, x).T @ self._weights
        return found

    def posterior(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation without noise at points [n, columns]: [n] each."""
        cross = self._kernel(self._x, x)
        mean = self._mean + self._expected(x) + cross.T @ self._weights
        explained = cross  # without points there is nothing to explain
        if len(self._y):
            explained = linalg.solve_triangular(self._lower, cross, lower=True, check_finite=False)
        variance = self._amplitude - np.einsum("ij,ij->j", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 1e-9))

    def _expected(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x)) if self._trend is None else self._trend(x)

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
        gram = self._kernel(self._x, self._x)
        gram[np.diag_indices_from(gram)] += self._noise
        self._lower = linalg.cholesky(gram, lower=True, check_finite=False)
        self._weights = linalg.cho_solve((self._lower, True), self._y, check_finite=False)

    def _find(self) -> None:
        """Set the hyperparameters at the maximum of their posterior, by L-BFGS with the gradient."""
        n, keys = len(self._y), self._count
        if not n:
            self._take(np.repeat(_START, (keys, 1, 1)))
            return
        square = np.zeros((keys, n, n))
        for column, key in enumerate(self._groups):
            square[key] += (self._x[:, None, column] - self._x[None, :, column]) ** 2
        flat = square.reshape(keys, n * n)
        identity = np.eye(n)
        means = np.repeat(_MEANS, (keys, 1, 1))
        spreads = np.repeat(_SPREADS, (keys, 1, 1))

        def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
            inverse = np.exp(-2 * at[:keys])
            amplitude, noise = math.exp(at[keys]), math.exp(at[keys + 1])
            distance = np.sqrt(5 * (inverse @ flat)).reshape(n, n)
            decay = np.exp(-distance)
            gram = amplitude * (1 + distance + distance**2 / 3) * decay
            lower = linalg.cholesky(gram + (noise + _JITTER) * identity, lower=True, check_finite=False)
            weights = linalg.cho_solve((lower, True), self._y, check_finite=False)
            pull = np.outer(weights, weights) - linalg.cho_solve((lower, True), identity, check_finite=False)
            value = 0.5 * self._y @ weights + np.log(np.diag(lower)).sum()
            slope = np.empty_like(at)
            slope[:keys] = -5 / 6 * amplitude * (flat @ (pull * (1 + distance) * decay).ravel()) * inverse
            slope[keys] = -0.5 * (pull * gram).sum()
            slope[keys + 1] = -0.5 * noise * np.trace(pull)
            off = (at - means) / spreads
            return float(value + 0.5 * off @ off), slope + off / spreads

        found = optimize.minimize(
            loss,
            np.repeat(_START, (keys, 1, 1)),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-3.0, 4.0)] * keys + [(-4.0, 3.0), (-7.0, 1.0)],
            options={"maxiter": _ITERATIONS},
        ).x
        self._take(found)

    def _take(self, found: np.ndarray) -> None:
        """Set the hyperparameters by their logarithms: length scales, amplitude and noise."""
        self._scales = np.exp(found[: self._count])[self._groups]
        self._amplitude = math.exp(found[self._count])
        self._noise = math.exp(found[self._count + 1]) + _JITTER
