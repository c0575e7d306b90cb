"""The tasks of curve_tasks.py as regressions on their recorded curves, for thousands of sweeps in minutes.

A prediction is the mean of a forest (which keeps steps) and of small networks (which keep slopes), both of the
logarithm of the loss at each epoch, by 400 recorded configurations. A training's noise is that of a recorded one
nearby. Diverged trainings count as the worst loss.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from curve_tasks import TASKS
from scipy.stats import spearmanr
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPRegressor

import tunelight as tl
from tests.world.curves import read_table

NETWORKS = 3
NEIGHBOURS = 5
"""Recorded configurations of which one lends its noise to a training."""
WORST = 0.95
"""Quantile of the recorded losses that stands for all above it, and for divergence."""


class Curves:
    """The regression on a task's recorded curves: columns [n, columns] to log losses [n, epochs]."""

    def __init__(self, columns: np.ndarray, losses: np.ndarray) -> None:
        self._mean, self._scale = losses.mean(0), losses.std(0) + 1e-9
        scaled = (losses - self._mean) / self._scale
        forest = ExtraTreesRegressor(100, random_state=0).fit(columns, scaled)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the networks need not have converged
            networks = [
                MLPRegressor(
                    hidden_layer_sizes=(64, 64),
                    activation="tanh",
                    alpha=1e-2,
                    max_iter=400,
                    learning_rate_init=3e-3,
                    random_state=n,
                )
                for n in range(NETWORKS)
            ]
            fitted = [network.fit(2 * columns - 1, scaled) for network in networks]
        self._trees = [tree.tree_ for tree in forest.estimators_]
        self._layers = [list(zip(network.coefs_, network.intercepts_, strict=True)) for network in fitted]

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Return the predicted log losses."""
        narrow = columns.astype(np.float32)
        trees = np.mean([tree.predict(narrow)[:, :, 0] for tree in self._trees], 0)
        networks = np.mean([self._network(layers, 2 * columns - 1) for layers in self._layers], 0)
        predicted: np.ndarray = self._mean + self._scale * (trees + networks) / 2
        return predicted

    @staticmethod
    def _network(layers: Sequence[tuple[np.ndarray, np.ndarray]], values: np.ndarray) -> np.ndarray:
        for weights, bias in layers[:-1]:  # MLPRegressor.predict spends most of its time on checks
            values = np.tanh(values @ weights + bias)
        weights, bias = layers[-1]
        out: np.ndarray = values @ weights + bias
        return out


class Recorded:
    """A task's recorded configurations as columns in [0, 1], and the logarithms of their losses."""

    def __init__(self, name: str) -> None:
        table = read_table(name)
        self.space = tl.SearchSpace(dict(table.space))
        self.columns = np.array([self.encode(config) for config in table.configs])
        losses = np.asarray(table.metrics["loss"], float)
        worst = np.nanquantile(losses, WORST)
        self.losses = np.log(np.where(np.isfinite(losses), np.minimum(losses, worst), worst) + 1e-6)
        """[configurations, seeds, epochs]"""

    def encode(self, config: Mapping[str, Any]) -> np.ndarray:
        """Return a configuration's columns: one for each number, one for each of the values of a choice."""
        columns: list[float] = []
        for key, described in self.space.describe().items():
            (kind, argument), value = next(iter(described.items())), config[key]
            if kind == "choice":
                columns += [float(value == one) for one in argument]
            else:
                low, high, at = (np.log(n) if "log" in kind else n for n in (*argument, value))
                columns.append(float((at - low) / (high - low)))
        return np.array(columns)

    @functools.cached_property
    def predict(self) -> Curves:
        """The regression on all configurations."""
        return Curves(self.columns, self.losses.mean(1))


@functools.cache
def recorded(name: str) -> Recorded:
    """Return a task's recorded curves."""
    return Recorded(name)


@functools.lru_cache(10_000)
def _predicted(name: str, config: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a configuration's log losses by epoch, and the numbers of the recorded ones nearest to it."""
    known = recorded(name)
    columns = known.encode(json.loads(config))
    near = ((known.columns - columns) ** 2).sum(1).argsort()[:NEIGHBOURS]
    return known.predict(columns[None])[0], near


class Training:
    """A predicted training, read epoch by epoch."""

    def __init__(self, name: str, config: Mapping[str, Any], seed: int) -> None:
        mean, near = _predicted(name, json.dumps(config, sort_keys=True, default=float))
        rng = np.random.RandomState(seed % 2**32)
        first, second, *_ = rng.permutation(recorded(name).losses[rng.choice(near)])
        self._losses: Iterator[float] = iter(np.exp(mean + (first - second) / 2**0.5))

    def epoch(self) -> dict[str, float]:
        """Return the next report."""
        return {"loss": float(next(self._losses))}


@dataclass(frozen=True, eq=False)
class SurrogateTask:
    """A task whose trainings are predicted."""

    name: str
    about: str
    epochs: int
    space: Mapping[str, Any]
    half: str

    def start(self, config: Mapping[str, Any], seed: int) -> Training:
        """Return a training of a configuration, before its first epoch."""
        return Training(self.name, config, seed)


SURROGATES = {name: SurrogateTask(name, task.about, task.epochs, task.space, task.half) for name, task in TASKS.items()}


def held_out(name: str) -> tuple[float, float]:
    """Return the rank correlation of predicted and recorded best losses, in five-fold cross-validation.

    Of all configurations, and of the best quarter.
    """
    known = recorded(name)
    losses, best = known.losses.mean(1), np.zeros(len(known.columns))
    for train, test in KFold(5, shuffle=True, random_state=0).split(known.columns):
        best[test] = Curves(known.columns[train], losses[train])(known.columns[test]).min(1)
    truth = known.losses.min(2).mean(1)
    top = truth <= np.quantile(truth, 0.25)
    return float(spearmanr(best, truth)[0]), float(spearmanr(best[top], truth[top])[0])


if __name__ == "__main__":
    for name in SURROGATES:
        print(f"{name:22}" + "".join(f"{value:7.2f}" for value in held_out(name)), flush=True)
