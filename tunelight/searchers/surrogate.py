"""A Gaussian process for small numbers of points, with a length scale for each key of a search space.

Rasmussen and Williams, "Gaussian Processes for Machine Learning" (https://gaussianprocess.org/gpml/), chapters 2 and 5.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy import linalg, optimize

_ITERATIONS: Final = 12
_JITTER: Final = 1e-4
_MEANS: Final = (0.0, 0.0, -2.0)
_SPREADS: Final = (1.0, 1.0, 1.5)
"""Prior of the logarithms of length scales, amplitude and noise: means and standard deviations."""
_START: Final = (-0.3, 0.0, -2.0)


class GaussianProcess:
    """A Matern 5/2 process over columns in [0, 1], whose hyperparameters maximize the posterior.

    Deterministic: it depends on the data alone, and the search for hyperparameters always starts at the same place.

    Args:
        x: columns, [n, columns].
        y: targets of about unit scale, [n].
        groups: the number of each column's key; columns of a key share a length scale.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> None:
        self._groups = groups
        self._mean = float(y.mean())
        self._x, self._y = x, y - self._mean
        self._count = int(groups.max()) + 1 if len(groups) else 0
        self._find()
        self._factor()

    def add(self, x: np.ndarray) -> None:
        """Add points as if they had the values that are expected of them, so that others are chosen beside them."""
        if len(x):
            expected, _ = self.posterior(x)
            self._x = np.concatenate((self._x, x))
            self._y = np.concatenate((self._y, expected - self._mean))
            self._factor()

    def posterior(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation without noise at points [n, columns]: [n] each."""
        cross = self._kernel(self._x, x)
        mean = self._mean + cross.T @ self._weights
        explained = linalg.solve_triangular(self._lower, cross, lower=True, check_finite=False)
        variance = self._amplitude - np.einsum("ij,ij->j", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 1e-9))

    def _kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        scaled, others = a / self._scales, b / self._scales
        square = (scaled**2).sum(1)[:, None] + (others**2).sum(1)[None] - 2 * scaled @ others.T
        distance = np.sqrt(5 * np.maximum(square, 0))
        result: np.ndarray = self._amplitude * (1 + distance + distance**2 / 3) * np.exp(-distance)
        return result

    def _factor(self) -> None:
        gram = self._kernel(self._x, self._x)
        gram[np.diag_indices_from(gram)] += self._noise
        self._lower = linalg.cholesky(gram, lower=True, check_finite=False)
        self._weights = linalg.cho_solve((self._lower, True), self._y, check_finite=False)

    def _find(self) -> None:
        """Set the hyperparameters at the maximum of their posterior, by L-BFGS with the gradient."""
        n, keys = len(self._y), self._count
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
        self._scales = np.exp(found[:keys])[self._groups]
        self._amplitude = math.exp(found[keys])
        self._noise = math.exp(found[keys + 1]) + _JITTER
