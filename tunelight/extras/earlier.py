"""Trials of earlier sweeps, for a searcher that is to begin with what they found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tunelight.errors import SettingsError, StorageError, unknown
from tunelight.record import (
    ERROR,
    FINISHED,
    INFEASIBLE,
    STOPPED,
    TrialState,
    has_record,
    is_better,
    list_sweeps,
    metric_value,
    read_record,
)
from tunelight.settings import Mode
from tunelight.space import SearchSpace

MOST: Final = 20
"""How many of its last sweeps a folder of sweeps stands for."""


@dataclass(frozen=True)
class Earlier:
    """A trial of an earlier sweep: FINISHED, STOPPED (also if it was cut off) or infeasible, as DIVERGED."""

    sweep: str
    """The folder of its sweep."""
    id: str
    state: str
    config: Mapping[str, Any]
    """The configuration that its best report was trained under."""
    best: Sequence[float] = ()
    """All metrics in its best report; empty where there is none."""
    curve: Mapping[int, float] = field(default_factory=dict)
    """The first metric by report."""

    @property
    def name(self) -> str:
        """The folder of its sweep, and its id."""
        return f"{self.sweep}/{self.id}"


def read_earlier(
    folders: Iterable[str | os.PathLike[str]], objectives: Sequence[tuple[str, Mode]], but: Path | None = None
) -> tuple[list[Earlier], list[Path]]:
    """Return the trials of earlier sweeps that say something of their configuration, and these sweeps' folders.

    Trials are judged by this sweep's metrics; those that failed for other reasons than their configuration are left
    out, as are those without a report. A folder that holds sweeps stands for the last 20 of them that reported the
    metrics, except ``but``, the sweep that asks.

    Raises: StorageError if there is no sweep; SettingsError if none of its trials reported the metrics.
    """
    trials: list[Earlier] = []
    sweeps: list[Path] = []
    for folder in dict.fromkeys(Path(given).expanduser().absolute() for given in folders):
        inside = [] if has_record(folder) else [listed.folder for listed in list_sweeps(folder) if listed.folder != but]
        found = [_read(folder, objectives)] if not inside else _last(inside, objectives)
        if not found:
            metrics = " and ".join(metric for metric, _ in objectives)
            raise SettingsError(
                f"warm_start: no sweep in {folder} has a trial that reported this sweep's metric {metrics}."
            )
        for sweep, known in found:
            if sweep not in sweeps:
                sweeps.append(sweep)
                trials += known
    return trials, sweeps


def translated(trials: Sequence[Earlier], space: SearchSpace) -> list[Earlier]:
    """Return trials with the configurations that ``space`` would have for them, as far as it has their keys.

    A fixed value of an earlier sweep is a value like any other.
    """
    made = []
    for trial in trials:
        values = dict(_flat(trial.config))
        made.append(replace(trial, config=space.written({key: values[key] for key in space.domains if key in values})))
    return made


def _flat(config: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a configuration by its dotted key; mappings as a whole, too."""
    for key, value in config.items():
        yield f"{start}{key}", value
        if isinstance(value, Mapping):
            yield from _flat(value, f"{start}{key}.")


_Sweep = tuple[Path, list[Earlier]]


def _read(folder: Path, objectives: Sequence[tuple[str, Mode]]) -> _Sweep:
    state = read_record(folder)
    for metric, _ in objectives:
        if all(metric_value(report, metric) is None for trial in state.trials.values() for report in trial.history):
            start = f"warm_start: no trial of {folder} reported this sweep's metric"
            names = dict.fromkeys(key for trial in state.trials.values() for report in trial.history for key in report)
            raise SettingsError(unknown(start, metric, names, listed="They reported"))
    trials = sorted(state.from_scratch, key=lambda trial: trial.index)
    return folder, [known for trial in trials if (known := _earlier(folder, trial, objectives)) is not None]


def _last(sweeps: Iterable[Path], objectives: Sequence[tuple[str, Mode]]) -> list[_Sweep]:
    """Return the last sweeps, given the last written first, with their trials; the last one comes last."""
    found: list[_Sweep] = []
    for sweep in sweeps:
        with contextlib.suppress(SettingsError, StorageError):  # has other metrics, or a record that cannot be read
            found.append(_read(sweep, objectives))
        if len(found) == MOST:
            break
    return found[::-1]


def _earlier(folder: Path, trial: TrialState, objectives: Sequence[tuple[str, Mode]]) -> Earlier | None:
    if trial.state == ERROR:
        return None
    if trial.state in INFEASIBLE:
        return Earlier(str(folder), trial.id, trial.state, trial.config)
    mode = objectives[0][1]
    best: list[float] = []
    number, curve = 0, dict[int, float]()
    for report in trial.history:
        values = [metric_value(report, metric) for metric, _ in objectives]
        if values[0] is not None:
            curve[int(report["training_iteration"])] = values[0]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and (not best or is_better(known[0], best[0], mode)):
            best, number = known, report["training_iteration"]
    if not best:
        return None
    state = FINISHED if trial.state == FINISHED else STOPPED
    return Earlier(str(folder), trial.id, state, trial.config_at(number), best, curve)
