"""The trials of a sweep as an Optuna study, for Optuna's plots and its dashboard."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.compat.optuna import frozen_constraints
from tunelight.errors import SettingsError, StorageError
from tunelight.record import ERROR, FINISHED, INFEASIBLE, INTERRUPTED, PENDING, RUNNING, STOPPED, metric_value
from tunelight.settings.dotted import flatten
from tunelight.space.plain import to_plain_config
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from tunelight.record import SweepState, TrialState
    from tunelight.settings import Mode
    from tunelight.space.distributions import Parameter

OWNER: Final = "tunelight"
"""The study's attribute that holds the sweep's folder."""
_ENDED: Final = {STOPPED: "PRUNED", FINISHED: "FAIL", ERROR: "FAIL", INTERRUPTED: "FAIL"}
"""Optuna's states of trials without a result."""


@dataclass(frozen=True)
class _Sweep:
    """What is needed of a sweep."""

    folder: Path
    objectives: Sequence[tuple[str, Mode]]
    dotted: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Returns a configuration by dotted key."""
    parameters: Mapping[str, Parameter | None]


def study_of(
    state: SweepState,
    folder: Path,
    objectives: Sequence[tuple[str, Mode]],
    space: Mapping[str, Any],
    storage: str | os.PathLike[str] | BaseStorage | None,
) -> optuna.Study:
    """Return a study with the trials of a recorded sweep; see :meth:`tunelight.results.SweepResults.to_study`.

    ``space``: its search space as in ``sweep.yaml``; empty where that is not known.
    """
    import optuna

    from tunelight.space import SearchSpace
    from tunelight.space.distributions import parameter_of

    sweep = _Sweep(folder, objectives, flatten, {})
    if space:
        searched = SearchSpace(space)
        parameters = {key: parameter_of(key, domain) for key, domain in searched.domains.items()}
        sweep = _Sweep(folder, objectives, searched.dotted, parameters)
    with _quiet():
        try:
            target = _opened(storage)
            _make_room(target, sweep, masked(str(storage)))
            study = optuna.create_study(
                storage=target,
                study_name=folder.name,
                directions=["minimize" if mode == "min" else "maximize" for _, mode in objectives],
            )
            study.set_metric_names([metric for metric, _ in objectives])
            study.set_user_attr(OWNER, str(folder))
            study.add_trials(_frozen(trial, sweep) for trial in state.searched if trial.state != PENDING)
        except (optuna.exceptions.OptunaError, OSError, ImportError) as error:
            raise StorageError(f"The study cannot be written to {masked(str(storage))}: {error}") from error
    return study


def _opened(storage: Any) -> BaseStorage:
    """Return the storage at an address that Optuna knows, or the journal at a path; None: one in memory."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if storage is None or not isinstance(storage, str | os.PathLike) or "://" in str(storage):
        return optuna.storages.get_storage(storage)
    path = Path(storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


def _make_room(target: BaseStorage, sweep: _Sweep, where: str) -> None:
    """Delete an earlier study of this sweep. Raises: SettingsError if the name is taken by another study."""
    import optuna

    known = {study.study_name: study.user_attrs.get(OWNER) for study in target.get_all_studies()}
    name = sweep.folder.name
    if known.get(name, str(sweep.folder)) != str(sweep.folder):
        raise SettingsError(
            f"{where} holds a study {name!r} already, which is not that of {sweep.folder}, and is left alone. Choose "
            f"another storage, or delete that study (optuna delete-study --storage {where} --study-name {name})."
        )
    if name in known:
        optuna.delete_study(study_name=name, storage=target)


def _frozen(trial: TrialState, sweep: _Sweep) -> FrozenTrial:
    """Return a trial as Optuna has it; keys that no distribution of Optuna's fits are attributes."""
    from optuna.trial import TrialState as States
    from optuna.trial import create_trial

    report = {} if trial.best is None else trial.history[trial.best]
    config = trial.config if trial.best is None else trial.config_at(report["training_iteration"])
    params, distributions, others = {}, {}, dict[str, Any]()
    for key, value in sweep.dotted(config).items():
        parameter = sweep.parameters.get(key)
        try:
            if parameter is None:
                raise ValueError
            params[key], distributions[key] = parameter.stored(value), parameter.distribution
        except (ValueError, TypeError):
            others[key] = to_plain_config(value)
    values = [metric_value(report, metric) for metric, _ in sweep.objectives]
    fields: dict[str, Any] = frozen_constraints({"infeasible": float(trial.state in INFEASIBLE)})
    if trial.state in INFEASIBLE:
        worst = [math.inf if mode == "min" else -math.inf for _, mode in sweep.objectives]
        fields |= {"state": States.COMPLETE, "values": worst}
    elif trial.state == FINISHED and None not in values:
        fields |= {"state": States.COMPLETE, "values": values}
    else:
        fields |= {"state": States[_ENDED.get(trial.state, "RUNNING")]}
    made = create_trial(
        params=params,
        distributions=distributions,
        user_attrs={**others, "trial": trial.id, "state": trial.state},
        intermediate_values=_curve(trial, sweep.objectives[0][0]) if len(values) == 1 else {},
        **fields,
    )
    if trial.moves:
        made.datetime_start = _time(next((at for at, state in trial.moves if state == RUNNING), trial.moves[0][0]))
        made.datetime_complete = _time(trial.moves[-1][0]) if made.state.is_finished() else None
    return made


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at)  # noqa: DTZ006 - Optuna's times are local ones, without a zone


def _curve(trial: TrialState, metric: str) -> dict[int, float]:
    found = {int(report["training_iteration"]): metric_value(report, metric) for report in trial.history}
    return {step: value for step, value in found.items() if value is not None}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from logging, and from saying which of its functions are experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
