"""Studies of Optuna in memory, of which it draws a figure or computes importances."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tunelight.compat.optuna import frozen_constraints, quiet
from tunelight.extras.figures.data import MISSING
from tunelight.extras.figures.style import Values

if TYPE_CHECKING:
    from optuna import Study


@contextmanager
def study_of(
    values: Values,
    modes: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    *,
    log: Sequence[str] = (),
    failed: Values | None = None,
) -> Iterator[Study]:
    """Yield a study of completed trials, and keep Optuna and its warnings quiet meanwhile.

    Args:
        values: of each trial and metric, finite.
        modes: "min" or "max", of each metric.
        params: of each trial by name, numbers or text; MISSING where a trial lacks one. Optuna takes the range of
            numbers, and the different texts, as what was searched.
        log: the names that were searched on a logarithmic scale.
        failed: the trials that cannot be the best, as booleans.
    """
    import optuna  # a second that only these figures need
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    params = params or {}
    searched: dict[str, BaseDistribution] = {}
    for name, column in params.items():
        present = [value for value in column if value is not MISSING]
        if isinstance(present[0], str):
            searched[name] = CategoricalDistribution(tuple(sorted(set(present))))
        else:
            searched[name] = FloatDistribution(min(present), max(present), log=name in log)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(directions=["maximize" if mode == "max" else "minimize" for mode in modes])
        rows = [{name: column[row] for name, column in params.items()} for row in range(len(values))]
        study.add_trials(
            optuna.trial.create_trial(
                params={name: value for name, value in row.items() if value is not MISSING},
                distributions={name: searched[name] for name, value in row.items() if value is not MISSING},
                values=value.tolist(),
                **(frozen_constraints({"failed": 1.0}) if failed is not None and failed[number] else {}),
            )
            for number, (row, value) in enumerate(zip(rows, values, strict=True))
        )
        yield study
