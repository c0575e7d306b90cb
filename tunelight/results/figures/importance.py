"""The importance of hyperparameters, by Optuna's evaluators on a study that is built from the record."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tunelight.compat.optuna import quiet
from tunelight.errors import SettingsError, unknown
from tunelight.results.figures.data import Column
from tunelight.results.figures.style import Values, is_wide

Evaluator = Literal["fanova", "pedanova"]
EVALUATORS: Final[tuple[Evaluator, ...]] = ("fanova", "pedanova")
ROUGH: Final = 100
"""Trials below which importances can be far off with any evaluator (docs/decisions/0009)."""
MOST: Final = 1000
"""The most trials that are evaluated; of more, a random sample gives the same result, in seconds."""
_TREES: Final = 64
_DEPTH: Final = 5
"""Of fANOVA's trees. Unlimited depth, Optuna's default, fits noise, and takes minutes for 1,000 trials."""
_FEW: Final = 8
_LEAST: Final = 4
"""Trials below which there are no importances."""


@dataclass(frozen=True)
class Importance:
    """The importance of a key, by ``trials`` trials; ``partial``: only those whose configuration has the key."""

    key: str
    value: float
    trials: int
    partial: bool = False


def is_there(evaluator: Evaluator) -> bool:
    """Tell whether an evaluator's requirements are installed: fANOVA needs scikit-learn."""
    return evaluator != "fanova" or importlib.util.find_spec("sklearn") is not None


def importances_of(
    columns: Sequence[Column], values: Values, mode: str, evaluator: str
) -> tuple[list[Importance], str]:
    """Return each key's importance, and why there are none.

    Keys that every configuration has are evaluated together. A conditional key is evaluated with them on the trials
    that have it. Raises: SettingsError for an unknown evaluator.
    """
    if evaluator not in EVALUATORS:
        raise SettingsError(unknown("There is no evaluator", evaluator, EVALUATORS))
    if len(values) < _LEAST:
        return [], f"Importances need {_LEAST} trials with a value; there are {len(values)}."
    if float(np.ptp(values)) == 0:
        return [], "All trials have the same value: no key explains a difference."
    shared = [column for column in columns if column.there.all()]
    found = [Importance(key, value, len(values)) for key, value in evaluate(shared, values, mode, evaluator).items()]
    for column in columns:
        there = column.there
        few = there.sum() < _LEAST or len(set(map(repr, np.array(column.numbers)[there]))) < 2
        if there.all() or few or float(np.ptp(values[there])) == 0:
            continue
        part = [*(_where(one, there) for one in shared), _where(column, there)]
        part = [one for one in part if len(set(one.numbers.tolist())) > 1]
        value = evaluate(part, values[there], mode, evaluator).get(column.key)
        if value is not None:
            found.append(Importance(column.key, value, int(there.sum()), partial=True))
    return found, "" if found else "Too few trials have the keys that differ."


def _where(column: Column, there: Values) -> Column:
    return Column(column.key, tuple(v for v, one in zip(column.raw, there, strict=True) if one), column.numeric)


def evaluate(columns: Sequence[Column], values: Values, mode: str, evaluator: str) -> dict[str, float]:
    """Return each key's importance, by one of Optuna's evaluators."""
    if not columns:
        return {}
    import optuna  # a second that only this figure needs
    from optuna.importance import (
        FanovaImportanceEvaluator,
        PedAnovaImportanceEvaluator,
        get_param_importances,
    )

    columns = sorted(columns, key=lambda column: column.key)  # Optuna expects `params` in this order
    seen = [_suggested(column) for column in columns]
    spaces = {
        column.key: _distribution(optuna.distributions, column, values)
        for column, values in zip(columns, seen, strict=True)
    }
    rows = zip(*seen, strict=True)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
        study.add_trials(
            optuna.trial.create_trial(
                params=dict(zip(spaces, row, strict=True)), distributions=spaces, value=float(value)
            )
            for row, value in zip(rows, values, strict=True)
        )
        judge: Any = PedAnovaImportanceEvaluator()
        if evaluator == "fanova":
            judge = FanovaImportanceEvaluator(n_trees=_TREES, max_depth=_DEPTH, seed=0)
        found = get_param_importances(study, evaluator=judge, params=list(spaces))
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def _suggested(column: Column) -> list[Any]:
    """Return a column's values for evaluators, which assume them to be uniform in their range.

    Numbers that are far apart are replaced by their logarithm, and a few different ones by their rank.
    """
    if not column.numeric:
        return [column.labels[int(place)] for place in column.numbers]
    numbers = column.numbers
    different = np.unique(numbers)
    if len(different) <= _FEW:
        return [float(place) for place in np.searchsorted(different, numbers)]
    return [float(number) for number in (np.log10(numbers) if is_wide(numbers) else numbers)]


def _distribution(distributions: Any, column: Column, values: Sequence[Any]) -> Any:
    """Return a distribution that covers the values."""
    if not column.numeric:
        return distributions.CategoricalDistribution(tuple(column.labels))
    return distributions.FloatDistribution(min(values), max(values))
