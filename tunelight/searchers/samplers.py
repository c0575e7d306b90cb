"""Optuna's samplers by name, created and seeded for a sweep."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import optuna
from optuna import samplers
from optuna.samplers import BaseSampler

from tunelight.compat.optuna import sampler_arguments
from tunelight.errors import SettingsError, unknown

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


# Whoever runs a sweep need not hear of studies that it makes for itself.
logging.getLogger("optuna.storages").setLevel(logging.WARNING)


def learns(kind: Any) -> bool:
    """Tell whether a sampler uses results at all."""
    return kind not in _BLIND and not isinstance(kind, samplers.RandomSampler | samplers.QMCSampler)


def is_sampler(given: Any) -> bool:
    """Tell whether an object is an Optuna sampler."""
    return isinstance(given, BaseSampler)


def keeps_nothing(sampler: BaseSampler) -> bool:
    """Tell whether a sampler depends on nothing but the parameters and values of trials.

    The others store something with each trial that they suggest (a generation, the position in a sequence).
    """
    return isinstance(sampler, samplers.TPESampler | samplers.GPSampler | samplers.RandomSampler)


def reseed(sampler: BaseSampler, *words: int) -> None:
    """Seed a sampler's generators, so that its next suggestion depends on ``words`` and the study alone.

    Optuna's own ``reseed_rng`` takes no seed. A resumed study would have to repeat all suggestions to bring its
    generators to the same state.
    """
    state = np.random.SeedSequence(words).generate_state(4)
    for found in _generators(sampler):
        found.seed(state)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's warnings about experimental features and infeasible trials."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Clip non-finite values")
        warnings.filterwarnings("ignore", message="GPSampler cannot handle infinite values")  # Optuna 4's words for it
        warnings.filterwarnings("ignore", message="Constraints have been set")
        yield


def _generators(part: Any) -> Iterator[np.random.RandomState]:
    for value in vars(part).values():
        if isinstance(value, BaseSampler):
            yield from _generators(value)
        elif isinstance(found := getattr(value, "rng", None), np.random.RandomState):
            yield found
