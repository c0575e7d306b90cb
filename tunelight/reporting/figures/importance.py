"""How important each key was, by Optuna's evaluators, on a study that is built in memory from what was recorded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tunelight.errors import SettingsError, guess
from tunelight.reporting.figures.data import Column
from tunelight.reporting.figures.style import Values, is_wide

Evaluator = Literal["pedanova", "fanova"]

_LEAST: Final = 4
"""Trials below which nothing is said of importance: the best tenth would be one trial, and chance."""


@dataclass(frozen=True)
class Importance:
    """Of one key; ``partial`` where only some configurations have it, and those alone were judged."""

    key: str
    value: float
    partial: bool


def importances_of(
    columns: Sequence[Column], values: Values, mode: str, evaluator: str
) -> tuple[list[Importance], str]:
    """Return each key's importance, and why there is none.

    Keys that every configuration has are judged together. One that is missing in some (a conditional one) is judged
    with them among those trials that have it. Raises: SettingsError for another evaluator.
    """
    if evaluator not in ("pedanova", "fanova"):
        valid = ["pedanova", "fanova"]
        raise SettingsError(f"evaluator is {evaluator!r}, but is one of: {', '.join(valid)}.{guess(evaluator, valid)}")
    if len(values) < _LEAST:
        return [], f"Importances need {_LEAST} trials with a value; there are {len(values)}."
    if float(np.ptp(values)) == 0:
        return [], "All trials have the same value: no key explains a difference."
    whole = [column for column in columns if column.there.all()]
    found = [Importance(key, value, partial=False) for key, value in _evaluate(whole, values, mode, evaluator).items()]
    for column in columns:
        there = column.there
        few = there.sum() < _LEAST or len(set(map(repr, np.array(column.numbers)[there]))) < 2
        if there.all() or few or float(np.ptp(values[there])) == 0:
            continue
        part = [*(_where(one, there) for one in whole), _where(column, there)]
        part = [one for one in part if len(set(one.numbers.tolist())) > 1]
        value = _evaluate(part, values[there], mode, evaluator).get(column.key)
        if value is not None:
            found.append(Importance(column.key, value, partial=True))
    return found, "" if found else "Too few trials have the keys that differ."


def _where(column: Column, there: Values) -> Column:
    return Column(column.key, tuple(v for v, one in zip(column.raw, there, strict=True) if one), column.numeric)


def _evaluate(columns: Sequence[Column], values: Values, mode: str, evaluator: str) -> dict[str, float]:
    if not columns:
        return {}
    import optuna  # noqa: PLC0415 - a second that only this figure needs
    from optuna.importance import (  # noqa: PLC0415
        FanovaImportanceEvaluator,
        PedAnovaImportanceEvaluator,
        get_param_importances,
    )

    spaces = {column.key: _distribution(optuna.distributions, column) for column in columns}
    rows = zip(*(_suggested(column) for column in columns), strict=True)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PED-ANOVA is marked as experimental
            study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
            study.add_trials(
                optuna.trial.create_trial(
                    params=dict(zip(spaces, row, strict=True)), distributions=spaces, value=float(value)
                )
                for row, value in zip(rows, values, strict=True)
            )
            judge: Any = FanovaImportanceEvaluator(seed=0) if evaluator == "fanova" else PedAnovaImportanceEvaluator()
            found = get_param_importances(study, evaluator=judge, params=list(spaces))
    finally:
        optuna.logging.set_verbosity(before)
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def _suggested(column: Column) -> list[Any]:
    if not column.numeric:
        return [column.labels[int(place)] for place in column.numbers]
    return [value if isinstance(value, int) else float(value) for value in column.raw]


def _distribution(distributions: Any, column: Column) -> Any:
    """Return a distribution that the values may have come from: their range, logarithmic where they are far apart."""
    if not column.numeric:
        return distributions.CategoricalDistribution(tuple(column.labels))
    numbers = column.numbers
    low, high, log = float(numbers.min()), float(numbers.max()), is_wide(numbers)
    if all(isinstance(value, int) for value in column.raw):
        return distributions.IntDistribution(int(low), int(high), log=log)
    return distributions.FloatDistribution(low, high, log=log)
