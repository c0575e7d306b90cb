"""The trials of a sweep as an Optuna study, for Optuna's plots and its dashboard."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import SettingsError, StorageError, TunelightError
from tunelight.extras.optuna_versions import frozen_constraints, quiet
from tunelight.record import ERROR, FINISHED, INFEASIBLE, INTERRUPTED, PENDING, RUNNING, STOPPED, metric_value
from tunelight.settings import Mode
from tunelight.settings.checks import flatten
from tunelight.space import SearchSpace
from tunelight.space.kinds import KINDS, Parameter
from tunelight.space.plain import to_plain_config
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from tunelight.record import SweepState, TrialState
OWNER: Final = "tunelight"
"""The study's attribute that holds the sweep's folder."""
_ENDED: Final = {STOPPED: "PRUNED", FINISHED: "FAIL", ERROR: "FAIL", INTERRUPTED: "FAIL"}
"""Optuna's states of trials without a result."""
_MISSING: Final = object()

_Keys = tuple[str, ...]
_Parameters = Mapping[_Keys, "Parameter | None"]
"""By the keys that lead to a value in a configuration; None: Optuna has no distribution for it."""


def study_of(
    state: SweepState,
    folder: Path,
    objectives: Sequence[tuple[str, Mode]],
    space: Mapping[str, Any],
    storage: str | os.PathLike[str] | BaseStorage | None,
) -> optuna.Study:
    """Return a study with the trials of a recorded sweep; see :meth:`tunelight.results.SweepResults.to_study`.

    ``space``: its search space as in ``sweep.yaml``. Nothing that it names is imported.
    """
    import optuna

    parameters = dict(_parameters(space))
    with quiet():
        try:
            target = _opened(storage)
            _make_room(target, folder, masked(str(storage)))
            study = optuna.create_study(
                storage=target,
                study_name=folder.name,
                directions=["minimize" if mode == "min" else "maximize" for _, mode in objectives],
            )
            study.set_metric_names([metric for metric, _ in objectives])
            study.set_user_attr(OWNER, str(folder))
            study.add_trials(
                _frozen(trial, objectives, parameters) for trial in state.from_scratch if trial.state != PENDING
            )
        except TunelightError:
            raise
        except Exception as error:  # noqa: BLE001 - databases have errors of their own, which may contain a password
            reason = masked(f"{type(error).__name__}: {error}")
            where = masked(str(storage))
            raise StorageError(f"The study cannot be written to {where}: {reason}") from (
                error if reason.endswith(str(error)) else None
            )
    return study


def _parameters(space: Mapping[str, Any], inside: _Keys = ()) -> Iterator[tuple[_Keys, Parameter | None]]:
    """Yield each domain of a space as Optuna has it."""
    for key, value in space.items():
        keys = (*inside, key)
        domain = value
        if isinstance(value, Mapping):
            domain = {name: argument for name, argument in value.items() if name != "when"}
            if value and not any(name in KINDS for name in domain):
                yield from _parameters(value, keys)
                continue
        if isinstance(domain, Mapping) and "sample_from" in domain:  # which names code
            yield keys, None
            continue
        try:
            read = SearchSpace({"key": domain})
            yield keys, read.kinds["key"].parameter(".".join(keys), read.domains["key"])
        except TunelightError:
            yield keys, None


def _values(config: Mapping[str, Any], parameters: _Parameters) -> Iterator[tuple[str, Any, Parameter | None]]:
    """Yield the values of a configuration: dotted key, value, and how Optuna has it."""
    if not parameters:
        yield from ((key, value, None) for key, value in flatten(config).items())
    for keys, parameter in parameters.items():
        found: Any = config
        for key in keys:
            found = found.get(key, _MISSING) if isinstance(found, Mapping) else _MISSING
        if found is not _MISSING:
            yield ".".join(keys), found, parameter


def _opened(storage: Any) -> BaseStorage:
    """Return the storage at an address that Optuna knows, or the journal at a path; None: one in memory.

    Raises: SettingsError for a file that is no journal.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if storage is None or not isinstance(storage, str | os.PathLike) or "://" in str(storage):
        return optuna.storages.get_storage(storage)
    path = Path(storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            written = file.read()
            if b'"op_code"' not in written.partition(b"\n")[0]:
                raise SettingsError(f"{path} is no journal of Optuna's, and is left alone. Choose another file.")
            file.truncate(written.rfind(b"\n") + 1)  # its writer may have been killed within a line
    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


def _make_room(target: BaseStorage, folder: Path, where: str) -> None:
    """Delete an earlier study of this sweep. Raises: SettingsError if the name is taken by another study."""
    import optuna

    known = {study.study_name: study.user_attrs.get(OWNER) for study in target.get_all_studies()}
    name = folder.name
    if known.get(name, str(folder)) != str(folder):
        raise SettingsError(
            f"{where} holds a study {name!r} already, which is not that of {folder}, and is left alone. Choose "
            f"another storage, or delete that study (optuna delete-study --storage {where} --study-name {name})."
        )
    if name in known:
        optuna.delete_study(study_name=name, storage=target)


def _frozen(trial: TrialState, objectives: Sequence[tuple[str, Mode]], parameters: _Parameters) -> FrozenTrial:
    """Return a trial as Optuna has it; keys that no distribution of Optuna's fits are attributes."""
    from optuna.trial import TrialState as States
    from optuna.trial import create_trial

    report = {} if trial.best is None else trial.history[trial.best]
    config = trial.config if trial.best is None else trial.config_at(report["training_iteration"])
    params, distributions, others = {}, {}, dict[str, Any]()
    for key, value, parameter in _values(config, parameters):
        try:
            if parameter is None:
                raise ValueError
            params[key], distributions[key] = parameter.stored(value), parameter.distribution
        except (ValueError, TypeError):
            others[key] = to_plain_config(value)
    values = [metric_value(report, metric) for metric, _ in objectives]
    fields: dict[str, Any] = frozen_constraints({"infeasible": float(trial.state in INFEASIBLE)})
    if trial.state in INFEASIBLE:
        worst = [math.inf if mode == "min" else -math.inf for _, mode in objectives]
        fields |= {"state": States.COMPLETE, "values": worst}
    elif trial.state == FINISHED and None not in values:
        fields |= {"state": States.COMPLETE, "values": values}
    else:
        fields |= {"state": States[_ENDED.get(trial.state, "RUNNING")]}
    made = create_trial(
        params=params,
        distributions=distributions,
        user_attrs={**others, "trial": trial.id, "state": trial.state},
        intermediate_values=_curve(trial, objectives[0][0]) if len(values) == 1 else {},
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
