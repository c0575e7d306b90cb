"""A sweep's record as learning curves, to simulate its trials under another scheduler, or on another cluster."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tunelight.errors import SettingsError
from tunelight.record import FINISHED, TrialState, metric_value, read_record
from tunelight.simulation.costs import Costs
from tunelight.simulation.curves import KEY, Curve, deal

_OWN = ("epoch", "training_iteration", "timestamp")


class SweepCurves:
    """What a sweep's trials reported, in its own order of trials.

    A trial that trains further in a simulation than it did goes on reporting its last value, and the simulation says
    so. An epoch takes the median time between two of the trial's reports (with a single report: the median of all
    trials); ``costs.speedup`` converts that to one worker.

    Args:
        costs: how gangs of another size compare (``Costs()``).
        seconds: an epoch on one worker (None: as recorded).

    Raises: SettingsError where nothing was reported; StorageError where there is no sweep.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, costs: Costs | None = None, seconds: float | None = None
    ) -> None:
        state = read_record(folder)
        trials = [trial for trial in state.searched if trial.history]
        if not trials:
            raise SettingsError(f"The sweep in {folder} holds no report, so there is no curve to simulate with.")
        self.metric = str(state.sweep.get("metric"))
        self.mode: Literal["min", "max"] = "max" if state.sweep.get("mode") == "max" else "min"
        self.size = len(trials)
        self.epochs = max(len(trial.history) for trial in trials)
        early = sum(trial.state != FINISHED for trial in trials)
        self.note = f"curves of the sweep {Path(folder).name!r}, of whose {self.size} trials {early} ended early"
        self._configs = [trial.config for trial in trials]
        speed = costs or Costs()
        own = [seconds if seconds is not None else _alone_s(trial, speed) for trial in trials]
        measured = [alone_s for alone_s in own if alone_s is not None]
        if not measured:
            raise SettingsError(
                f"No trial of the sweep in {folder} reported twice, so how long an epoch takes is not known. "
                "Make SweepCurves(folder, seconds=...)."
            )
        usual = median(measured)
        self._curves = [
            Curve(_metrics(trial.history), usual if alone_s is None else alone_s, len(trial.history))
            for trial, alone_s in zip(trials, own, strict=True)
        ]

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number``: the sweep's own order, then shuffled ones."""
        index = number if number < self.size else deal(number, self.size, seed)
        return {**self._configs[index], KEY: index}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return the curve of one of the sweep's configurations."""
        if KEY not in config:
            raise SettingsError(
                f"The configuration {dict(config)!r} is none that the sweep has run, so its curve is not known. "
                "Simulate without searcher=."
            )
        return self._curves[int(config[KEY])]


def _alone_s(trial: TrialState, costs: Costs) -> float | None:
    times = [report["timestamp"] for report in trial.history]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return median(gaps) * costs.speedup(trial.workers or 1) if gaps else None


def _metrics(history: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    names = dict.fromkeys(name for report in history for name in report if name not in _OWN)
    columns = {name: [metric_value(report, name) for report in history] for name in names}
    return {
        name: [math.nan if value is None else value for value in values]
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
