"""Until: a scheduler that stops trials at a given report."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.messages import Continue
from tunelight.schedulers.base import GangScheduler


class Until(GangScheduler):
    """Stop every trial at its report ``number`` (from 1); ``new``: whether new trials may begin (True)."""

    def __init__(self, number: int, *, new: bool = True) -> None:
        super().__init__()
        self._number, self._new = number, new

    def admits(self) -> bool:
        """Tell whether a new trial may begin, beside those of an earlier run."""
        return self._new

    def initial_decision(self) -> Continue:
        """Let a trial run without answers to the report at which it ends."""
        return Continue(until=self._number)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Stop the trial at the report."""
        done = result.get("training_iteration", 0) >= self._number
        self.explain(trial.trial_id, f"was to end at report {self._number}" if done else None)
        return TrialScheduler.STOP if done else TrialScheduler.CONTINUE
