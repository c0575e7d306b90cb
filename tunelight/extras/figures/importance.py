"""The importance of hyperparameters, by Optuna's evaluators on a study that is built from the record."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tunelight.errors import SettingsError, unknown
from tunelight.extras.figures.data import Column
from tunelight.extras.figures.studies import study_of
from tunelight.extras.figures.style import Values, is_wide

Evaluator = Literal["fanova", "pedanova"]
EVALUATORS: Final[tuple[Evaluator, ...]] = ("fanova", "pedanova")
ROUGH: Final = 100
"""Trials below which importances can be far off with any evaluator (docs/decisions/0009)."""
MOST: Final = 1000
"""The most trials that are evaluated; of more, so many give the same result, in seconds."""
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


def is_there(evaluator: str) -> bool:
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
    if not is_there(evaluator):
        return [], "fANOVA needs scikit-learn, which is not installed: pip install scikit-learn."
    if len(values) < _LEAST:
        return [], f"Importances need {_LEAST} trials with a value; there are {len(values)}."
    if float(np.ptp(values)) == 0:
        return [], "All trials have the same value: no key explains a difference."
    shared = [column for column in columns if column.there.all()]
    found = [Importance(key, value, len(values)) for key, value in evaluate(shared, values, mode, evaluator).items()]
    for column in columns:
        there = column.there
        count = int(there.sum())
        if there.all() or count < _LEAST or not column.differs or float(np.ptp(values[there])) == 0:
            continue
        part = [one for one in (other.some(there) for other in [*shared, column]) if one.differs]
        value = evaluate(part, values[there], mode, evaluator).get(column.key)
        if value is not None:
            found.append(Importance(column.key, value, count, partial=True))
    return found, "" if found else "Too few trials have the keys that differ."


def evaluate(columns: Sequence[Column], values: Values, mode: str, evaluator: str) -> dict[str, float]:
    """Return each key's importance, by one of Optuna's evaluators; every trial must have every key."""
    if not columns:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    # Optuna expects `params` in this order.
    params = {column.key: _suggested(column) for column in sorted(columns, key=lambda column: column.key)}
    with study_of(np.asarray(values)[:, None], [mode], params) as study:
        judge: Any = PedAnovaImportanceEvaluator()
        if evaluator == "fanova":
            judge = FanovaImportanceEvaluator(n_trees=_TREES, max_depth=_DEPTH, seed=0)
        found = get_param_importances(study, evaluator=judge, params=list(params))
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def _suggested(column: Column) -> list[Any]:
    """Return a column's values for evaluators, which assume them to be uniform in their range.

    Numbers that are far apart are replaced by their logarithm, and a few different ones by their rank.
    """
    if not column.numeric:
        return column.values
    numbers = np.array(column.values)
    different = np.unique(numbers)
    if len(different) <= _FEW:
        return [float(place) for place in np.searchsorted(different, numbers)]
    return [float(number) for number in (np.log10(numbers) if is_wide(numbers) else numbers)]
