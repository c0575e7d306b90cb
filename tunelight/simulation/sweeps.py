"""A sweep's record as learning curves, to simulate its trials under another scheduler, or on another cluster."""

from __future__ import annotations

import itertools
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

    A trial that was stopped early has a curve only as far as it came; one that trains further in a simulation goes
    on reporting its last value, and the simulation says so. An epoch takes what lay between two of a trial's reports
    in the median (where it has one report only: in the median of all), on a gang as large as it was then; from that
    the time of one worker follows by ``costs.speedup``.

    Args:
        folder: the sweep's.
        costs: how gangs of another size compare (``Costs()``).
        seconds: an epoch on one worker, for those who know better (None: as recorded).

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
        usual = median([one for one in own if one is not None] or [0.0])
        self._curves = [
            Curve(_metrics(trial.history), usual if alone_s is None else alone_s, len(trial.history))
            for trial, alone_s in zip(trials, own, strict=True)
        ]
        if not any(one is not None for one in own):
            raise SettingsError(
                f"No trial of the sweep in {folder} reported twice, so how long an epoch takes is not known. "
                "Make SweepCurves(folder, seconds=...)."
            )

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
    found = {name: [metric_value(report, name) for report in history] for name in names}
    return {
        name: [float("nan") if value is None else value for value in values]
        for name, values in found.items()
        if any(value is not None for value in values)
    }
