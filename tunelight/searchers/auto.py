"""The sampler "auto": a Gaussian process over the reports of all trials, also of those that were stopped early."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tunelight.searchers.surrogate import EarlierSweeps, GaussianProcess, one_thread, scores_of, spread
from tunelight.space import SearchSpace
from tunelight.space.distributions import Parameter
from tunelight.space.domains import spell

_STARTUP: Final = 10
"""Trials that have reported before the model is asked."""
_TRIED: Final = 4
"""Trials that have reported before earlier sweeps choose more than one configuration in so many."""
_TRUSTED: Final = 0.5
"""Weight of earlier sweeps in all, of about 1, from which on they are followed before ten trials have reported."""
_RANDOM: Final = 0.1
"""Share of later configurations that are drawn at random all the same."""
_CANDIDATES: Final = 200
"""Points that are compared for a suggestion: half of them drawn, half near the best trials. Fewer where constraints
refuse more than half of what is drawn."""
_ATTEMPTS: Final = 10
"""How often a candidate is drawn again that breaks a constraint of the space."""
_FEWEST: Final = 5
"""Trials of an earlier sweep from which on it is modelled."""
_SWEEPS: Final = 20
"""The largest number of earlier sweeps that are modelled."""
_BEST: Final = 3
"""Configurations of each earlier sweep near which candidates are drawn."""


class Axis:
    """A key of the space, whose values have coordinates in [0, 1]; ``columns``: how many a model sees of it."""

    def __init__(self, distribution: BaseDistribution, ordered: bool) -> None:
        self._choices: list[Any] = []
        self.columns = 1
        if isinstance(distribution, CategoricalDistribution):
            choices = list(distribution.choices)
            numbers = len(choices) > 2 and all(type(value) in (int, float) for value in choices)
            self._choices = sorted(choices) if numbers else choices
            self.columns = 1 if ordered or numbers else len(choices)
            return
        one: Any = distribution
        self._low, self._high, self._step, self._log = one.low, one.high, one.step, one.log
        self._kind = int if isinstance(distribution, IntDistribution) else float
        half = (one.step or 0) / 2  # a whole number n stands for n - 0.5 to n + 0.5
        self._start = self._scaled(one.low - half)
        self._length = self._scaled(one.high + half) - self._start

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value

    def coordinate(self, value: Any) -> float:
        """Return a stored value's coordinate."""
        if self._choices:
            return (self._choices.index(value) + 0.5) / len(self._choices)
        return (self._scaled(value) - self._start) / self._length

    def value(self, coordinate: float) -> Any:
        """Return the value at a coordinate, as the study stores it."""
        if self._choices:
            return self._choices[min(int(coordinate * len(self._choices)), len(self._choices) - 1)]
        found = self._start + coordinate * self._length
        found = math.exp(found) if self._log else found
        if self._step is not None:
            found = self._low + round((found - self._low) / self._step) * self._step
        return self._kind(min(max(found, self._low), self._high))


@dataclass
class _Trials:
    """Trials with a result: their points [n, keys], NaN where a trial has no such key, and losses [n]."""

    points: np.ndarray
    losses: np.ndarray


class AutoSampler(BaseSampler):
    """Suggest configurations by a Gaussian process over the best report of each trial so far.

    The model sees each trial's rank by its best report: under a scheduler that stops trials early, that a trial was
    stopped says enough (as in Salinas, Golebiowski, Klein, Seeger and Archambeau, "Optimizing Hyperparameters with
    Conformal Quantile Regression", https://arxiv.org/abs/2305.03623). Trials that have not reported yet count with
    predicted values. Each suggestion weighs expected value against uncertainty in another way, so that trials which
    start together differ. The first ten trials are drawn at random, and so is a tenth of the others.

    Earlier sweeps, whose trials are in the study by a name with their sweep's folder, are modelled alike. Their
    predictions are where this sweep's model starts from, each weighted by how well it predicts this sweep's trials.
    They choose every fourth trial at first, and all but the random ones as soon as four trials have confirmed them.

    A suggestion depends on the generator, ``number`` and the study's trials alone.
    """

    number = 0
    """Of the sweep's trial that is suggested next."""

    def __init__(self, seed: int | None = None) -> None:
        self._draws = SimpleNamespace(rng=np.random.RandomState(seed))  # where `reseed` finds it
        self._axes: dict[str, Axis] = {}
        self._earlier: EarlierSweeps | None = None

    def search(self, space: SearchSpace, parameters: Mapping[str, Parameter | None]) -> None:
        """Set the space to search, of which keys that Optuna has no distribution for are drawn at random."""
        self._space = space
        self._parameters = {key: one for key, one in parameters.items() if one and not one.distribution.single()}
        self._grid = [key for key in self._parameters if isinstance(space.domains[key], Mapping)]
        self._axes = {
            key: Axis(one.distribution, spell(space.domains[key])[0] == "ordinal")
            for key, one in self._parameters.items()
        }
        self._groups = np.repeat(np.arange(len(self._axes)), [axis.columns for axis in self._axes.values()])
        self._earlier_best = np.zeros((0, len(self._axes)))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all keys that the model sees."""
        return {key: self._parameters[key].distribution for key in self._axes}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a value at random."""
        return Axis(param_distribution, ordered=False).value(self._draws.rng.random_sample())

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the best of many candidates by the model; nothing where all keys are to be drawn at random."""
        rng = self._draws.rng
        if rng.random_sample() < _RANDOM or not self._axes:
            return {}
        trials = [one for one in study.get_trials(deepcopy=False) if "trial" in one.user_attrs]
        if self._earlier is None:
            self._earlier = self._learn(study, trials)
        own = [one for one in trials if not _sweep_of(one) and one.state != TrialState.FAIL]
        known = self._read(study, own)
        order, scores = scores_of(known.losses)
        with one_thread():
            if not self._learned(known, scores):
                return {}
            near = known.points[order[: max(3, len(order) // 10)]]
            if len(order) < _STARTUP:
                near = np.concatenate((near, self._earlier_best))
            points, candidates = self._candidates(near)
            if not candidates:
                return {}
            used = spread(order)
            model = self._model(self._columns(known.points[used]), scores[used])
            waiting = [one for one in own if one.state == TrialState.RUNNING and _loss(study, one) is None]
            if waiting:
                model.add(self._columns(np.array([self._point(one.params) for one in waiting])))
            mean, deviation = model.posterior(self._columns(points))
        return candidates[int(np.argmin(mean - rng.exponential() * deviation))]

    # -- trials as points

    def _point(self, params: Mapping[str, Any]) -> np.ndarray:
        axes = self._axes.items()
        return np.array([axis.coordinate(params[key]) if key in params else math.nan for key, axis in axes])

    def _columns(self, points: np.ndarray) -> np.ndarray:
        """Return the columns of points [n, keys]: one of each key, or one of each value of a choice without order."""
        parts = [np.zeros((len(points), 0))]
        for coordinates, axis in zip(points.T, self._axes.values(), strict=True):
            if axis.columns == 1:
                parts.append(np.where(np.isnan(coordinates), 0.5, coordinates)[:, None])
            else:
                places = np.floor(coordinates * axis.columns)[:, None]
                parts.append(np.minimum(places, axis.columns - 1) == np.arange(axis.columns))
        return np.concatenate(parts, axis=1)

    def _read(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> _Trials:
        """Return the trials that have reported, or whose configuration cannot be trained."""
        found = [(self._point(one.params), loss) for one in trials if (loss := _loss(study, one)) is not None]
        points, losses = zip(*found, strict=True) if found else ((), ())
        return _Trials(np.array(points).reshape(len(points), len(self._axes)), np.array(losses, float))

    def _learn(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> EarlierSweeps:
        """Model the earlier sweeps in the study."""
        sweeps = [self._read(study, list(each)) for sweep, each in itertools.groupby(trials, _sweep_of) if sweep]
        sweeps = [sweep for sweep in sweeps if len(sweep.losses) >= _FEWEST][-_SWEEPS:]
        for sweep in sweeps:
            best = sweep.points[np.argsort(sweep.losses, kind="stable")[:_BEST]]
            self._earlier_best = np.concatenate((self._earlier_best, best))
        with one_thread():
            return EarlierSweeps([(self._columns(one.points), one.losses) for one in sweeps], self._groups)

    # -- the model

    def _learned(self, known: _Trials, scores: np.ndarray) -> bool:
        """Tell whether the model is asked: once enough trials have reported, or where earlier sweeps say enough."""
        count = len(scores)
        if count >= _STARTUP or not self._earlier:
            return count >= _STARTUP
        if count < _TRIED:
            return self.number % _TRIED == 0
        return float(self._earlier.weights(self._columns(known.points), scores).sum()) >= _TRUSTED

    def _model(self, x: np.ndarray, scores: np.ndarray) -> GaussianProcess:
        """Return the model of the reports, which starts from the predictions of earlier sweeps."""
        earlier = self._earlier
        if not earlier:
            return GaussianProcess(x, scores, self._groups)
        weights = earlier.weights(x, scores)
        return GaussianProcess(x, scores, self._groups, lambda at: weights @ earlier.expected(at))

    def _candidates(self, near: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Return points and their values: half drawn from the space, half near the given points."""
        rng, grid_index = self._draws.rng, self.number % self._space.grid_size
        points: list[np.ndarray] = []
        found: list[dict[str, Any]] = []
        for index in range(_ATTEMPTS * _CANDIDATES):
            if len(found) == _CANDIDATES or (found and index >= 2 * _CANDIDATES):
                break
            start = self._near(near[rng.randint(len(near))]) if index % 2 else rng.random_sample((near.shape[1],))
            places = dict(zip(self._axes, start, strict=True))
            values: dict[str, Any] = {}

            def choose(key: str, domain: Any, places: Any = places, values: Any = values) -> Any:
                place = places.get(key, math.nan)
                if key not in self._axes:
                    return domain.sample(random_state=rng)
                values[key] = self._axes[key].value(rng.random_sample() if math.isnan(place) else place)
                return self._parameters[key].restored(values[key])

            drawn = self._space.draw(choose, grid_index)
            if self._space.broken(drawn) is None:
                values |= {key: self._parameters[key].stored(drawn[key]) for key in self._grid if key in drawn}
                points.append(self._point(values))
                found.append(values)
        return np.array(points), found

    def _near(self, point: np.ndarray) -> np.ndarray:
        """Return a point near another: about half of its coordinates moved, all by a step of the same scale."""
        rng = self._draws.rng
        moved = rng.random_sample(len(point)) < 0.5
        moved[rng.randint(len(point))] = True
        steps = point + 10 ** rng.uniform(-1.7, -0.5) * rng.normal(size=len(point))
        steps = np.clip(np.where(steps > 1, 2 - steps, np.abs(steps)), 0, 1)
        for place, axis in enumerate(self._axes.values()):
            if moved[place] and axis.columns > 1:  # a choice has no neighbours
                steps[place] = rng.random_sample() if rng.random_sample() < 0.4 else point[place]
        return np.where(moved, steps, point)


def _sweep_of(trial: FrozenTrial) -> str:
    """Return the folder of the earlier sweep that a trial is of; "" for one of this sweep."""
    return str(trial.user_attrs["trial"]).rpartition("/")[0]


def _loss(study: optuna.Study, trial: FrozenTrial) -> float | None:
    """Return a trial's best report as a loss; infinite where it cannot be trained, None where there is none."""
    values = trial.values if trial.state == TrialState.COMPLETE else list(trial.intermediate_values.values())
    sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
    return min((sign * value for value in values or ()), default=None)
