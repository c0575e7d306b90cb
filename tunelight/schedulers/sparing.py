"""Sparing: a scheduler that lets some trials train to their end, and passes the others on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.compat.ray import TRAINING_ITERATION
from tunelight.messages import Continue
from tunelight.schedulers.common import tell


class Sparing(TrialScheduler):  # type: ignore[misc,unused-ignore]
    """Passes everything on to another scheduler, except of trials that it spares: those it never learns of.

    A spared trial competes with no other. It trains to the report that it is to end at.

    Args:
        scheduler: that of all other trials; further attributes are its own.
        ends_at: the report at which a spared trial is stopped (infinite: it ends by itself); None for other trials.

    Runs on: driver.
    """

    def __init__(self, scheduler: TrialScheduler, ends_at: Callable[[str], float | None]) -> None:
        self._inner = scheduler
        self._ends_at = ends_at
        self._told: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def metric(self) -> Any:
        """The metric of the scheduler."""
        return self._inner.metric

    @property
    def supports_buffered_results(self) -> bool:
        """Whether the scheduler needs not see each report at once."""
        return bool(self._inner.supports_buffered_results)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass on what trials are judged by."""
        return bool(self._inner.set_search_properties(metric, mode, **spec))

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a new trial."""
        if self._ends_at(trial.trial_id) is None:
            self._inner.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a failure."""
        if self._ends_at(trial.trial_id) is None:
            self._inner.on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return the scheduler's decision; of a spared trial CONTINUE, until it has come to its end."""
        end = self._ends_at(trial.trial_id)
        if end is None:
            return str(self._inner.on_trial_result(tune_controller, trial, result))
        if result.get(TRAINING_ITERATION, 0) >= end:
            return str(TrialScheduler.STOP)
        if trial.trial_id not in self._told:
            self._told.add(trial.trial_id)
            tell(trial, Continue(until=int(end) if math.isfinite(end) else None))
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Pass on an end."""
        if self._ends_at(trial.trial_id) is None:
            self._inner.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a trial that ended before it ran, or while it was paused."""
        if self._ends_at(trial.trial_id) is None:
            self._inner.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the scheduler's choice, else a spared trial that waits."""
        chosen = self._inner.choose_trial_to_run(tune_controller)
        if chosen is not None:
            return chosen
        spared = [trial for trial in tune_controller.get_trials() if self._ends_at(trial.trial_id) is not None]
        for status in (Trial.PENDING, Trial.PAUSED):
            for trial in spared:
                if trial.status == status:
                    return trial
        return None

    def debug_string(self) -> str:
        """Return the scheduler's words."""
        return str(self._inner.debug_string())

    def save(self, checkpoint_path: str) -> None:
        """Save the scheduler."""
        self._inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the scheduler."""
        self._inner.restore(checkpoint_path)
