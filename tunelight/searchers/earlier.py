"""Trials of earlier sweeps, for a searcher that is to begin with what they found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunelight.errors import SettingsError, unknown
from tunelight.record import (
    ERROR,
    FINISHED,
    INFEASIBLE,
    STOPPED,
    SweepState,
    TrialState,
    is_better,
    metric_value,
    read_record,
)
from tunelight.settings import Mode


@dataclass(frozen=True)
class Earlier:
    """A trial of an earlier sweep: FINISHED, STOPPED (also if it was cut off) or infeasible, as DIVERGED."""

    name: str
    state: str
    config: Mapping[str, Any]
    """The configuration that its best report was trained under."""
    best: Sequence[float] = ()
    """All metrics in its best report; empty where there is none."""
    curve: Mapping[int, float] = field(default_factory=dict)
    """The first metric by report."""


def read_earlier(folders: Iterable[str | os.PathLike[str]], objectives: Sequence[tuple[str, Mode]]) -> list[Earlier]:
    """Return the trials of earlier sweeps that say something of their configuration, by this sweep's metrics.

    Trials that failed for other reasons are left out, as are those without a report.
    Raises: StorageError if there is no sweep; SettingsError if none of its trials reported the metrics.
    """
    found: list[Earlier] = []
    for folder in dict.fromkeys(Path(one).expanduser().absolute() for one in folders):
        state = read_record(folder)
        _check_metrics(folder, state, [metric for metric, _ in objectives])
        trials = sorted(state.trials.values(), key=lambda trial: trial.index)
        found += [one for trial in trials if (one := _earlier(folder, trial, objectives)) is not None]
    return found


def _earlier(folder: Path, trial: TrialState, objectives: Sequence[tuple[str, Mode]]) -> Earlier | None:
    if trial.state == ERROR:
        return None
    name = f"{folder}/{trial.id}"
    if trial.state in INFEASIBLE:
        return Earlier(name, trial.state, trial.config)
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
    return Earlier(name, state, trial.config_at(number), best, curve)


def _check_metrics(folder: Path, state: SweepState, metrics: Sequence[str]) -> None:
    known = dict.fromkeys(name for trial in state.trials.values() for report in trial.history for name in report)
    for metric in metrics:
        if not any(_reports(state, metric)):
            start = f"warm_start: no trial of {folder} reported this sweep's metric"
            raise SettingsError(unknown(start, metric, known, listed="They reported"))


def _reports(state: SweepState, metric: str) -> Iterator[bool]:
    for trial in state.trials.values():
        for report in trial.history:
            yield metric_value(report, metric) is not None
