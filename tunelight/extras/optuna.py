"""OptunaSearcher: Optuna's samplers for a sweep, over a study of its trials in memory."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import optuna
from optuna import samplers
from optuna.samplers import BaseSampler, GPSampler
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState, create_trial
from ray.tune.search import Searcher

from tunelight.errors import SettingsError, unknown
from tunelight.extras.optuna_versions import ON_INFEASIBLE, frozen_constraints, quiet, sampler_arguments, set_constraint
from tunelight.record import ERROR, FINISHED, INFEASIBLE, INTERRUPTED, STOPPED, is_better
from tunelight.searchers.random import TrackingSearcher, Tried, generator
from tunelight.settings import Mode, paired
from tunelight.space import SearchSpace
from tunelight.space.kinds import Parameter
from tunelight.space.plain import to_plain_config

if TYPE_CHECKING:
    from tunelight.extras.earlier import Earlier

logger = logging.getLogger("tunelight")

_ATTEMPTS: Final = 50
"""How often a sampler is asked again that suggests what breaks a constraint of the space."""
_INFEASIBLE: Final = "infeasible"
"""The constraint, in Optuna's sense, by which samplers learn where training cannot succeed."""

_AT_RANDOM: Final = "The configuration is drawn at random instead."


@dataclass
class _Live:
    """A trial of the study that has not ended; ``best``: its metrics in the report with the best first metric."""

    trial: optuna.Trial
    best: list[float] | None = None
    last: Any = None
    """The number of its last report."""
    steps: set[Any] = field(default_factory=set)


class OptunaSearcher(TrackingSearcher):
    """Suggest configurations by an Optuna sampler.

    The study is in memory, and a resumed sweep rebuilds it from its record. For Optuna's own plots and dashboard,
    ``SweepResults.to_study`` makes one from the record, too.

    Suggestion n depends on the seed, n, and what the study was told before. FINISHED trials are COMPLETE in the study,
    with their best report, STOPPED ones PRUNED, ERROR and INTERRUPTED ones FAIL. Outcomes that blame the configuration
    (DIVERGED, OOM) are COMPLETE, but infeasible and infinitely bad, and so are configurations that break a constraint
    of the space, which are never run.

    Args:
        sampler: "tpe", "gp", "cmaes", "sobol", "qmc", "nsgaii", "nsgaiii", or an Optuna sampler, which is copied and
            seeded as the sweep is (None: "tpe"; with several metrics "nsgaii").
        space, metric, mode, seed: for use without ``tunelight.run``, which tells its own (0 is the seed then).
        options: arguments of the named sampler.

    Raises: SettingsError. Runs on: driver.
    """

    def __init__(
        self,
        sampler: str | BaseSampler | None = None,
        *,
        space: SearchSpace | Mapping[str, Any] | None = None,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._space = None if space is None else SearchSpace.of(space)
        self._objectives = paired(metric, mode)
        self._metric, self._mode = self._objectives[0] if self._objectives else (None, None)
        self._seed = seed
        self.kind = sampler
        self.learns = learns(sampler)
        self._options = options
        self._storage = InMemoryStorage()
        self._study: optuna.Study | None = None
        self._live: dict[str, _Live] = {}
        self._warned: set[str] = set()
        if sampler is not None or self._objectives:  # a wrong one is refused here, as soon as it is known
            make_sampler(self._named, options, seed or 0, len(self._objectives))

    @property
    def _named(self) -> Any:
        return self.kind or ("nsgaii" if len(self._objectives) > 1 else "tpe")

    def for_sweep(
        self, space: SearchSpace, metric: str | Sequence[str] | None, mode: Mode | Sequence[Mode], seed: int
    ) -> OptunaSearcher:
        """Return another searcher like this one, that a sweep can use as its own."""
        seed = seed if self._seed is None else self._seed
        return OptunaSearcher(self.kind, space=space, metric=metric, mode=mode, seed=seed, **self._options)

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Take metric, mode and space from Tune where they are missing; return False once the search has begun."""
        if self._study is not None:
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
            raise SettingsError("OptunaSearcher has nothing to search. Give it space=.")
        return self._space

    @functools.cached_property
    def tried(self) -> Tried:
        """What the sweep has tried. Raises: SettingsError if there is no space yet."""
        return Tried(self.space)

    # -- the study

    @property
    def study(self) -> optuna.Study:
        """The study in memory, created at its first use."""
        if self._study is None:
            count = len(self._objectives)
            if not count:
                raise SettingsError("OptunaSearcher has no metric to search for. Give it metric= and mode=.")
            with quiet():
                self._study = optuna.create_study(
                    storage=self._storage,
                    study_name="sweep",
                    sampler=make_sampler(self._named, self._options, self._seed or 0, count),
                    directions=["minimize" if mode == "min" else "maximize" for _, mode in self._objectives],
                )
                self._study.set_metric_names([metric for metric, _ in self._objectives])
        return self._study

    @functools.cached_property
    def _parameters(self) -> dict[str, Parameter | None]:
        domains, kinds = self.space.domains, self.space.kinds
        return {key: kind.parameter(key, domains[key], quantiles=True) for key, kind in kinds.items()}

    def close(self, states: Mapping[str, str]) -> None:
        """End trials that were cut off with the sweep, by their recorded states."""
        for trial_id in list(self._live):
            self.end(trial_id, states.get(trial_id, INTERRUPTED))

    # -- trials that begin

    def suggest(self, trial_id: str) -> Any:
        """Return the next configuration, or FINISHED."""
        sampler, number = self.study.sampler, self._number(trial_id)
        for attempt in range(_ATTEMPTS):
            words = (self._seed or 0, number, attempt)
            reseed(sampler, *words)
            trial = self.study.ask()
            try:
                with quiet():
                    values = self._drawn(trial, generator(*words, 1))
            except Exception as error:  # noqa: BLE001 - an error of a sampler must not end the sweep
                self._tell(trial, TrialState.FAIL)
                self._say("error", f"{type(sampler).__name__} raised {type(error).__name__}: {error}. {_AT_RANDOM}")
                break
            broken = self.space.broken(values)
            if broken is None and self.tried.once and values in self.tried:
                self._tell(trial, TrialState.FAIL)
                break
            if broken is None:
                return self._begin(trial_id, trial, values)
            self._tell_infeasible(trial, f"not run: {broken}")
        else:
            name = type(sampler).__name__
            self._say("broken", f"{_ATTEMPTS} suggestions of {name} in a row broke {broken!r}. {_AT_RANDOM}")
        drawn = self.tried.fresh(self._seed or 0, number)  # as random search would try it
        return Searcher.FINISHED if drawn is None else self._begin(trial_id, self.study.ask(), drawn)

    def _drawn(self, trial: optuna.Trial, rng: np.random.RandomState) -> dict[str, Any]:
        """Draw a configuration: keys by the sampler, or by the domain itself if Optuna has no such distribution."""

        def choose(key: str, domain: Any) -> Any:
            parameter = self._parameters[key]
            return domain.sample(random_state=rng) if parameter is None else parameter.suggest(trial)

        return self.space.draw(choose, self.tried.point())

    def _begin(self, trial_id: str, trial: optuna.Trial, values: Mapping[str, Any]) -> dict[str, Any]:
        params, others = self._split(values)
        for key, (value, parameter) in params.items():
            if key not in trial.params:  # not suggested just now
                inner = parameter.distribution.to_internal_repr(value)
                self._storage.set_trial_param(trial._trial_id, key, inner, parameter.distribution)
        for key, value in {**others, "trial": trial_id}.items():
            trial.set_user_attr(key, value)
        self._live[trial_id] = _Live(trial)
        self.tried.add(values)
        return self.space.written(values)

    def take(self, trial_id: str, config: Mapping[str, Any], *, asked: bool = False) -> None:
        """Add a trial whose configuration came from elsewhere, or (``asked``) was suggested in an earlier run."""
        number, trial = self._number(trial_id), self.study.ask()
        keeps_nothing = samplers.TPESampler | samplers.GPSampler | samplers.RandomSampler
        if asked and not isinstance(self.study.sampler, keeps_nothing):  # others keep a generation, or a position
            reseed(self.study.sampler, self._seed or 0, number, 0)
            with quiet():
                trial.relative_params  # noqa: B018 - for what the sampler leaves with the trial
        self._begin(trial_id, trial, self.space.dotted(config))

    def learn(self, earlier: Sequence[Earlier]) -> int:
        """Add trials of earlier sweeps to the study, by the keys that both spaces have; return how many had any.

        Samplers that model all keys together, which all but TPE do, get only the trials that have every key.
        """
        all_keys = not isinstance(self.study.sampler, optuna.samplers.TPESampler)
        modelled = {key for key, parameter in self._parameters.items() if parameter is not None}
        count = 0
        for trial in earlier:
            params, others = self._split(self.space.dotted(trial.config))
            if params and (not all_keys or params.keys() >= modelled):
                with quiet():
                    self.study.add_trial(
                        create_trial(
                            params={key: value for key, (value, _) in params.items()},
                            distributions={key: parameter.distribution for key, (_, parameter) in params.items()},
                            user_attrs={**others, "trial": trial.name, "state": trial.state},
                            **self._frozen_fields(trial),
                        )
                    )
                count += 1
        return count

    def _frozen_fields(self, trial: Earlier) -> dict[str, Any]:
        if trial.state in INFEASIBLE:
            return {"state": TrialState.COMPLETE, "values": self._worst, **frozen_constraints({_INFEASIBLE: 1.0})}
        constraints = frozen_constraints({_INFEASIBLE: 0.0} if self._marks_all else {})
        if trial.state == FINISHED:
            return {"state": TrialState.COMPLETE, "values": list(trial.best), **constraints}
        single = len(self._objectives) == 1
        curve = dict(trial.curve) if single else {}
        last = {"values": [curve[max(curve)]]} if curve else {}
        return {"state": TrialState.PRUNED, "intermediate_values": curve, **constraints, **last}

    def _split(self, values: Mapping[str, Any]) -> tuple[dict[str, tuple[Any, Parameter]], dict[str, Any]]:
        """Return the values that are parameters of the study, and the others."""
        params: dict[str, tuple[Any, Parameter]] = {}
        others: dict[str, Any] = {}
        for key, value in values.items():
            try:
                parameter = self._parameters[key]
                if parameter is None:
                    raise ValueError
                params[key] = parameter.stored(value), parameter
            except (ValueError, TypeError):
                others[key] = to_plain_config(value)
        return params, others

    # -- what becomes of them

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Add a report to the study."""
        if (live := self._live.get(trial_id)) is not None:
            self._add_report(trial_id, live, result)

    def _add_report(self, trial_id: str, live: _Live, result: Mapping[str, Any]) -> None:
        live.last = step = result.get("training_iteration")
        values = [_number(result, metric) for metric, _ in self._objectives]
        if values[0] is None:
            return
        if len(values) == 1 and step is not None and step not in live.steps:  # a repeated report counts once
            live.steps.add(step)
            live.trial.report(values[0], int(step))
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            missing = [metric for (metric, _), value in zip(self._objectives, values, strict=True) if value is None]
            self._say("missing", f"A trial reported no {', '.join(missing)}: such reports are left out of the study.")
        elif live.best is None or is_better(known[0], live.best[0], self._objectives[0][1]):
            live.best = known

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """End a trial, for callers that know less than ``end`` takes."""
        live = self._live.get(trial_id)
        reported = live is not None and result is not None and live.last == result.get("training_iteration")
        self.end(trial_id, ERROR if error else FINISHED if reported else STOPPED, result)

    def end(self, trial_id: str, state: str, result: Mapping[str, Any] | None = None) -> None:
        """End a trial in the study, after adding its last report if that is missing."""
        live = self._live.pop(trial_id, None)
        if live is None:
            return
        if result is not None and result.get("training_iteration") != live.last:
            self._add_report(trial_id, live, result)
        live.trial.set_user_attr("state", state)
        if state in INFEASIBLE:
            self._tell_infeasible(live.trial)
        elif state == STOPPED or (state == FINISHED and live.best is not None):
            if self._marks_all:
                set_constraint(live.trial, _INFEASIBLE, 0.0)
            if state == FINISHED:
                self._tell(live.trial, TrialState.COMPLETE, live.best)
            else:
                self._tell(live.trial, TrialState.PRUNED)
        else:
            self._tell(live.trial, TrialState.FAIL)

    def _tell_infeasible(self, trial: optuna.Trial, why: str | None = None) -> None:
        if why is not None:
            trial.set_user_attr("why", why)
        set_constraint(trial, _INFEASIBLE, 1.0)
        self._tell(trial, TrialState.COMPLETE, self._worst)

    def _tell(self, trial: optuna.Trial, state: TrialState, values: Sequence[float] | None = None) -> None:
        with warnings.catch_warnings():  # it logs nothing: to keep it quiet would take longer than it does
            warnings.filterwarnings("ignore", message=ON_INFEASIBLE)
            self.study.tell(trial, values, state)

    @property
    def _worst(self) -> list[float]:
        return [math.inf if mode == "min" else -math.inf for _, mode in self._objectives]

    @property
    def _marks_all(self) -> bool:
        """Tell whether every trial must state that it is feasible: Optuna's GP expects a constraint of each."""
        return isinstance(self.study.sampler, GPSampler)

    def _say(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(text)


def _number(result: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric as a finite float; None if it is not."""
    try:
        value = float(result[metric])
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return value if math.isfinite(value) else None


# --- Optuna's samplers by name, created and seeded for a sweep --------------------------------------------

KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tpe": ("TPESampler", {"constant_liar": True}),
    "gp": ("GPSampler", {"warn_independent_sampling": False}),
    "cmaes": ("CmaEsSampler", {"warn_independent_sampling": False}),
    "sobol": ("QMCSampler", {"qmc_type": "sobol", "scramble": True, "warn_independent_sampling": False}),
    "qmc": ("QMCSampler", {"scramble": True, "warn_independent_sampling": False}),
    "nsgaii": ("NSGAIISampler", {}),
    "nsgaiii": ("NSGAIIISampler", {}),
}
"""Name -> class of the sampler, and its default arguments here, for a version of Optuna that has them."""
_ONE_METRIC = ("cmaes",)
_BLIND = ("sobol", "qmc")
"""Samplers that use no results."""


def make_sampler(kind: Any, options: Mapping[str, Any], seed: int, objectives: int) -> BaseSampler:
    """Return a sampler by name, or a copy of one that is given. Raises: SettingsError."""
    if isinstance(kind, BaseSampler):
        if options:
            raise SettingsError(f"{type(kind).__name__} is made already, and takes no {', '.join(options)} any more.")
        return copy.deepcopy(kind)
    if kind not in KINDS:
        raise SettingsError(unknown("There is no sampler", kind, KINDS))
    if objectives > 1 and kind in _ONE_METRIC:
        raise SettingsError(f"searcher={kind!r} takes one metric only. Choose 'nsgaii', 'tpe' or 'gp' for several.")
    name, defaults = KINDS[kind]
    make: type[BaseSampler] = getattr(samplers, name)
    valid = list(inspect.signature(make).parameters)
    usual = sampler_arguments(make) | {key: value for key, value in defaults.items() if key in valid}
    for option in options:
        if option not in valid:
            raise SettingsError(unknown(f"searcher {kind!r} has no", option, valid, listed="It takes"))
    try:
        with quiet():
            if options and all(isinstance(value, bool | int | float | str | None) for value in options.values()):
                _try_out(make(**{"seed": seed, **usual, **options}), objectives)
            return make(**{"seed": seed, **usual, **options})
    except (ImportError, TypeError, ValueError, ArithmeticError, AssertionError) as error:
        raise SettingsError(f"searcher {kind!r} does not take {dict(options)}: {error}") from error


def _try_out(sampler: BaseSampler, objectives: int) -> None:
    """Ask a sampler a few times: Optuna looks at some options only when they are needed, which is in a sweep."""
    count = max(1, objectives)  # none yet, where a searcher is made before its sweep
    study = optuna.create_study(sampler=sampler, directions=["minimize"] * count)
    for _ in range(3):
        trial = study.ask()
        study.tell(trial, [trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1)] * count)


def learns(kind: Any) -> bool:
    """Tell whether a sampler uses results at all."""
    return kind not in _BLIND and not isinstance(kind, samplers.RandomSampler | samplers.QMCSampler)


def is_sampler(given: Any) -> bool:
    """Tell whether an object is an Optuna sampler."""
    return isinstance(given, BaseSampler)


def reseed(sampler: BaseSampler, *words: int) -> None:
    """Seed a sampler's generators, so that its next suggestion depends on ``words`` and the study alone.

    Optuna's own ``reseed_rng`` takes no seed. A resumed study would have to repeat all suggestions to bring its
    generators to the same state.
    """
    state = np.random.SeedSequence(words).generate_state(4)
    for found in _generators(sampler):
        found.seed(state)


def _generators(part: Any) -> Iterator[np.random.RandomState]:
    for value in vars(part).values():
        if isinstance(value, BaseSampler):
            yield from _generators(value)
        elif isinstance(found := getattr(value, "rng", None), np.random.RandomState):
            yield found
