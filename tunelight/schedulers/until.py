"""Until: train to a report, and no further."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tunelight.messages import Continue


class Until(FIFOScheduler):
    """Stop every trial at its report ``number``, and let no new trial begin unless ``admits`` says so.

    Args:
        number: the report, from 1.
        new: whether trials may begin that are not of an earlier run (True).
    """

    replayable = True

    def __init__(self, number: int, *, new: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._number = number
        self._new = new

    def admits(self) -> bool:
        """Tell whether a new trial may begin."""
        return self._new

    def initial_decision(self) -> Continue:
        """Let a trial run on unasked to the report at which it ends."""
        return Continue(until=self._number)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Stop the trial where it has come far enough."""
        done = result.get("training_iteration", 0) >= self._number
        return TrialScheduler.STOP if done else TrialScheduler.CONTINUE
