"""AutoSearcher: a searcher that learns from the reports of all trials, also of those that were stopped early."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from ray.tune.search import Searcher

from tunelight.record import INFEASIBLE, metric_value
from tunelight.searchers.earlier import Earlier
from tunelight.searchers.encoding import Encoder
from tunelight.searchers.learning import LearningSearcher
from tunelight.searchers.priors import has_priors
from tunelight.searchers.random import generator
from tunelight.searchers.surrogate import GaussianProcess, one_thread, scores_of, spread
from tunelight.searchers.transfer import EarlierSweeps
from tunelight.settings import Mode
from tunelight.space import SearchSpace

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


@dataclass
class _Known:
    """A trial: its configuration as a point, and its metrics in its best report, as losses."""

    values: Mapping[str, Any]
    point: np.ndarray
    best: list[float] | None = None
    ended: bool = False
    infeasible: bool = False


class AutoSearcher(LearningSearcher):
    """Suggest configurations by a Gaussian process over what trials have reported so far.

    The model sees one value for each trial, the best that it has reported, by its rank among all: under a scheduler
    that stops trials early, that a trial was stopped says enough (as in Salinas, Golebiowski, Klein, Seeger and
    Archambeau, "Optimizing Hyperparameters with Conformal Quantile Regression", https://arxiv.org/abs/2305.03623).
    Trials that have not reported yet count with what is expected of them. Each suggestion weighs expected value against
    uncertainty in another way, so that trials which start together differ. The first ten trials are drawn at random,
    as ``"random"`` would draw them, and so is a tenth of the others.

    Where the space names values by ``around``, every other of these draws is near them, and so are a quarter of the
    configurations among which the model chooses: a misleading value is left as soon as results speak against it.

    Earlier sweeps (``warm_start=``) are modelled alike. What they expect of a configuration is where this sweep's model
    starts from, each weighted by how well it predicts this sweep's trials. They choose every fourth trial at first, and
    all, but for the random ones, as soon as four trials have confirmed them.

    Of several metrics each suggestion takes another combination (ParEGO: Knowles, 2006). Keys that are functions, or of
    a user's own domain, are drawn at random.

    Suggestion n depends on the seed, n, and what all trials have reported before; nothing else is kept, so that a
    resumed sweep goes on as it would have.

    Args:
        space, metric, mode, seed: for use without ``tunelight.run``, which sets its own (seed 0).

    Raises: SettingsError. Runs on: driver.
    """

    def __init__(
        self,
        *,
        space: SearchSpace | Mapping[str, Any] | None = None,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(space, metric, mode, seed)
        self._known: dict[str, _Known] = {}
        self._past: list[tuple[np.ndarray, np.ndarray]] = []
        """Points and losses of each earlier sweep."""

    @property
    def _began(self) -> bool:
        return bool(self._known)

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The space as points. Raises: SettingsError if there is no space yet."""
        return Encoder(self.space)

    @functools.cached_property
    def _has_priors(self) -> bool:
        return has_priors(self.space)

    def learn(self, earlier: Sequence[Earlier]) -> int:
        """Learn from trials of earlier sweeps, by the keys that both spaces have; return how many had any.

        Of several metrics the mean of a trial's ranks counts.
        """
        count = 0
        for _, trials in itertools.groupby(earlier, key=lambda trial: trial.sweep):
            points, losses = list[np.ndarray](), list[Sequence[float]]()
            for trial in trials:
                point = self.encoder.point(self.space.dotted(trial.config))
                if not np.isnan(point).all():
                    points.append(point)
                    losses.append(self._as_losses(trial.best) if trial.best else self._infeasible)
            if points:
                table = np.array(losses, float)
                ranks = table if table.shape[1] == 1 else table.argsort(0, kind="stable").argsort(0, kind="stable")
                self._past.append((np.array(points), np.where(np.isinf(table[:, 0]), math.inf, ranks.mean(1))))
                count += len(points)
        return count

    @functools.cached_property
    def _earlier(self) -> EarlierSweeps:
        return EarlierSweeps(self.encoder, self._past)

    def _as_losses(self, values: Sequence[float]) -> list[float]:
        return [-value if mode == "max" else value for value, (_, mode) in zip(values, self._objectives, strict=True)]

    @property
    def _infeasible(self) -> list[float]:
        return [math.inf] * len(self._objectives)

    # -- trials

    def suggest(self, trial_id: str) -> Any:
        """Return the next configuration, or FINISHED."""
        number = self._number(trial_id)
        values = self._drawn_afresh(number, lambda: self._chosen(number))
        if values is None:
            return Searcher.FINISHED
        self._know(trial_id, values)
        return self.space.written(values)

    def _chosen(self, number: int) -> dict[str, Any]:
        """Return the configuration that trial ``number`` has by the model, or a random one."""
        rng = generator(self._seed or 0, number)
        space = self.space
        grid_index = self.tried.point()
        drawn = space.dotted(space.sample(rng, grid_index))  # as random search would
        if self._has_priors and number % 2:  # the other half of what is drawn pays no heed to them
            drawn = self._uniform(rng, grid_index) or drawn
        with one_thread():
            values = self._modelled(rng, grid_index) if self._learned(rng, number) else None
        return drawn if values is None else values

    def take(self, trial_id: str, config: Mapping[str, Any], *, asked: bool = False) -> None:
        """Add a trial whose configuration came from elsewhere, or (``asked``) was suggested in an earlier run."""
        self._number(trial_id)
        self._know(trial_id, self.space.dotted(config))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from a report."""
        known = self._known.get(trial_id)
        if known is None:
            return
        values = [value for metric, _ in self._objectives if (value := metric_value(result, metric)) is not None]
        if len(values) < len(self._objectives):
            return
        losses = self._as_losses(values)
        if known.best is None or losses[0] < known.best[0]:
            known.best = losses

    def end(self, trial_id: str, state: str, result: Mapping[str, Any] | None = None) -> None:
        """Learn how a trial ended."""
        known = self._known.get(trial_id)
        if known is None:
            return
        if result is not None:
            self.on_trial_result(trial_id, dict(result))
        known.ended, known.infeasible = True, state in INFEASIBLE

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """End a trial, for callers that know less than ``end`` takes."""
        self.end(trial_id, "", None if error else result)

    def _know(self, trial_id: str, values: Mapping[str, Any]) -> None:
        self.tried.add(values)
        self._known[trial_id] = _Known(values, self.encoder.point(values))

    # -- the model

    def _told(self) -> list[_Known]:
        """Return the trials that say something of their configuration, by id."""
        return [one for _, one in sorted(self._known.items()) if one.best is not None or one.infeasible]

    def _learned(self, rng: np.random.RandomState, number: int) -> bool:
        """Tell whether the model is asked: once enough trials have reported, or where earlier sweeps say enough."""
        drawn = rng.random_sample() < _RANDOM
        if drawn or not self.encoder.axes:
            return False
        told = self._told()
        if len(told) >= _STARTUP or not len(self._earlier):
            return len(told) >= _STARTUP
        if len(told) < _TRIED:
            return number % _TRIED == 0
        _, scores = scores_of(self._losses(told, rng))
        weights = self._earlier.weights(self.encoder.columns(self._points(told)), scores)
        return float(weights.sum()) >= _TRUSTED

    def _modelled(self, rng: np.random.RandomState, grid_index: int) -> dict[str, Any] | None:
        """Return the best of many candidates by the model; None if constraints left none."""
        told = self._told()
        order, scores = scores_of(self._losses(told, rng))
        points = self._points(told)
        near = points[order[: max(3, len(told) // 10)]]
        if len(told) < _STARTUP:
            near = np.concatenate((near, self._earlier.best))
        candidates = self._candidates(near, rng, grid_index)
        if not candidates:
            return None
        used = spread(order)
        model = self._model(self.encoder.columns(points[used]), scores[used])
        waiting = [one.point for one in self._known.values() if one.best is None and not one.ended]
        if waiting:
            model.add(self.encoder.columns(np.array(waiting)))
        mean, deviation = model.posterior(self.encoder.columns(np.array([point for point, _ in candidates])))
        return candidates[int(np.argmin(mean - rng.exponential() * deviation))][1]

    def _points(self, trials: Sequence[_Known]) -> np.ndarray:
        return np.array([one.point for one in trials]).reshape(len(trials), len(self.encoder.axes))

    def _model(self, x: np.ndarray, scores: np.ndarray) -> GaussianProcess:
        """Return the model of what was reported, which starts from what earlier sweeps expect."""
        if not len(self._earlier):
            return GaussianProcess(x, scores, self.encoder.groups)
        weights = self._earlier.weights(x, scores)
        return GaussianProcess(x, scores, self.encoder.groups, lambda at: weights @ self._earlier.expected(at))

    def _losses(self, told: Sequence[_Known], rng: np.random.RandomState) -> np.ndarray:
        """Return one loss for each trial: of several metrics a random combination (ParEGO); infeasible ones last."""
        count = len(self._objectives)
        losses = [self._infeasible if one.infeasible else one.best for one in told]
        table = np.array(losses, float).reshape(len(told), count)
        if count == 1:
            return table[:, 0]
        ranks = table.argsort(0, kind="stable").argsort(0, kind="stable") / len(told)
        weighted = ranks * rng.dirichlet(np.ones(count))
        combined: np.ndarray = weighted.max(1) + 0.05 * weighted.sum(1)
        combined[np.isinf(table[:, 0])] = math.inf
        return combined

    def _candidates(
        self, near: np.ndarray, rng: np.random.RandomState, grid_index: int
    ) -> list[tuple[np.ndarray, dict[str, Any]]]:
        """Return points with their configurations: half drawn from the space, half near the given points."""
        found: list[tuple[np.ndarray, dict[str, Any]]] = []
        for index in range(_ATTEMPTS * _CANDIDATES):
            if len(found) == _CANDIDATES or (found and index >= 2 * _CANDIDATES):
                break
            start: np.ndarray
            if index % 2:
                start = self._near(near[rng.randint(len(near))], rng)
            elif self._has_priors and not index % 4:
                start = np.full(near.shape[1], np.nan)  # drawn by the space, from its priors
            else:
                start = rng.random_sample((near.shape[1],))
            values = self.encoder.values(start, rng, grid_index)
            if self.space.broken(values) is None and not (self.tried.once and values in self.tried):
                found.append((self.encoder.point(values), values))
        return found

    def _uniform(self, rng: np.random.RandomState, grid_index: int) -> dict[str, Any] | None:
        """Return a configuration without regard to priors; None if constraints allow none of several."""
        for _ in range(_ATTEMPTS):
            values = self.encoder.values(rng.random_sample(len(self.encoder.axes)), rng, grid_index)
            if self.space.broken(values) is None:
                return values
        return None

    def _near(self, point: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """Return a point near another: about half of its coordinates moved, all by a step of the same scale."""
        moved = rng.random_sample(len(point)) < 0.5
        moved[rng.randint(len(point))] = True
        scale = 10 ** rng.uniform(-1.7, -0.5)
        steps = point + scale * rng.normal(size=len(point))
        steps = np.where(steps < 0, -steps, steps)
        steps = np.clip(np.where(steps > 1, 2 - steps, steps), 0, 1)
        choices = rng.random_sample(len(point))
        for place, axis in enumerate(self.encoder.axes.values()):
            if moved[place]:
                free = axis.columns > 1 and rng.random_sample() < 0.4  # a choice has no neighbours
                steps[place] = choices[place] if free else point[place] if axis.columns > 1 else steps[place]
        return np.where(moved, steps, point)
