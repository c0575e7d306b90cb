"""How trials of a study say that they are infeasible, which differs between Optuna 4 and 5; and Optuna kept quiet.

From 5 on a trial carries constraints of its own, and every sampler heeds them. In 4 only a sampler with a
``constraints_func`` does, which is asked as a trial ends; what it returns is stored with the trial. Here a trial of
Optuna 4 carries its constraints in the attributes in which 5 would write them, and the samplers that tunelight makes
read them from there. A sampler of the user's own without ``constraints_func`` sees in 4 only the values of such
trials, which are infinitely bad. Read in 4.0.0 and 5.0.0.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FrozenTrial

ON_INFEASIBLE: Final = "Clip non-finite values|GPSampler cannot handle infinite values|Constraints have been set"
"""What Optuna 4 and 5 say of infeasible trials."""
_PREFIX: Final = "constraints:"
"""Begins the system attributes in which Optuna 5 keeps a trial's constraints."""
_OF_SAMPLERS: Final = "constraints"
"""The system attribute in which samplers of Optuna 4 look for them: a list without names."""


def set_constraint(trial: Trial, name: str, value: float) -> None:
    """Give a live trial a constraint, which is broken by a value above 0."""
    if trials_carry_constraints():
        trial.set_constraint(name, value)
    else:
        trial.storage.set_trial_system_attr(trial._trial_id, _PREFIX + name, value)


def constraints_of(trial: FrozenTrial) -> dict[str, float]:
    """Return a trial's constraints by name."""
    attributes = trial.system_attrs.items()
    return {key.removeprefix(_PREFIX): value for key, value in attributes if key.startswith(_PREFIX)}


def frozen_constraints(constraints: Mapping[str, float]) -> dict[str, Any]:
    """Return the argument of ``optuna.trial.create_trial`` that gives a trial these constraints."""
    if trials_carry_constraints():
        return {"constraints": dict(constraints) or None}
    named = {_PREFIX + name: value for name, value in constraints.items()}
    return {"system_attrs": {**named, _OF_SAMPLERS: list(constraints.values()) or [0.0]}}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from logging, and from warning of experimental functions and of infeasible trials."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", message=ON_INFEASIBLE)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def sampler_arguments(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments by which a sampler's class is told to heed constraints."""
    if trials_carry_constraints() or "constraints_func" not in inspect.signature(make).parameters:
        return {}
    return {"constraints_func": _one_constraint}


def trials_carry_constraints() -> bool:
    """Tell whether the installed Optuna is 5 or newer."""
    from optuna import Trial

    return hasattr(Trial, "set_constraint")


def _one_constraint(trial: FrozenTrial) -> list[float]:
    """Return the constraints of a trial as samplers of Optuna 4 expect them: as many of every trial."""
    return [max(constraints_of(trial).values(), default=0.0)]
