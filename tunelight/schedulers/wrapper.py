"""SweepScheduler: the scheduler that Tune's controller has in a sweep, which wraps the sweep's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.compat.ray import TRAINING_ITERATION, mend, park
from tunelight.messages import RESULT_KEY, Continue
from tunelight.schedulers.base import GangScheduler, tell

_PAUSABLE: Final = f"{RESULT_KEY}/pausable"


class Queue(Protocol):
    """What is asked of a sweep's queue of trials."""

    held: bool
    """Whether the sweep was told to end: no trial begins or goes on any more."""

    def ends_at(self, trial_id: str) -> float | None:
        """Return the report at which a trial is stopped that competes with no other; None for trials that do."""

    def has_room(self) -> bool:
        """Tell whether another trial may run."""


class SweepScheduler:
    """Passes everything on to a scheduler, but for repetitions and branches, and while the sweep ends.

    A repetition or a branch competes with no other trial: the scheduler never learns of it, and it
    trains to a fixed report. While the sweep ends no trial begins or goes on.

    Args:
        scheduler: the sweep's own; further attributes are its own.
        queue: the sweep's trials.
        note: called with a text on a trial, and its id.
        interrupted: returns whether a signal has stopped the sweep, or another driver has it: its end then waits for no
            checkpoint.

    Runs on: driver.
    """

    def __init__(
        self,
        scheduler: GangScheduler,
        queue: Queue,
        note: Callable[[str, str], object] = lambda *_: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._queue, self._note = queue, note
        self._trains_on: set[str] = set()
        """Trials that the scheduler was to pause, and that write no checkpoints."""
        self.scheduler, self.interrupted = scheduler, interrupted
        self.controller: Any = None
        """Tune's controller, once a trial was added."""
        self._exempt: dict[str, Any] = {}
        """Trials of which the scheduler does not learn, by their ids."""
        self._told: set[str] = set()
        """Those whose gang was told its end."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "scheduler":  # as where it is copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def _end(self, trial: Any) -> float | None:
        """Return the report at which a repetition is stopped; None for other trials."""
        end = self._queue.ends_at(trial.trial_id)
        return math.inf if end is None and trial.trial_id in self._exempt else end

    def _pass_on(self, name: str, tune_controller: Any, trial: Any, *more: Any) -> None:
        """Call a method of the scheduler, but for a repetition."""
        if self._end(trial) is None:
            getattr(self.scheduler, name)(tune_controller, trial, *more)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a new trial."""
        if self.controller is None:
            mend(tune_controller)
        self.controller = tune_controller
        if self._end(trial) is not None:
            self._exempt[trial.trial_id] = trial
        self._pass_on("on_trial_add", tune_controller, trial)
        if self._queue.held and trial.status == Trial.PENDING:
            park(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a failure."""
        self._pass_on("on_trial_error", tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Pass on an end; of a trial that was stopped before its first report, as one that was removed."""
        if TRAINING_ITERATION in result:
            self._pass_on("on_trial_complete", tune_controller, trial, result)
        else:
            self._pass_on("on_trial_remove", tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a trial that ended before it ran, or while it was paused."""
        self._pass_on("on_trial_remove", tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return the scheduler's decision; for a trial that it does not know, whether its end has come."""
        end = self._end(trial)
        if end is None:
            decision = str(self.scheduler.on_trial_result(tune_controller, trial, result))
            if decision == TrialScheduler.PAUSE and not result.get(_PAUSABLE, True):
                return self._go_on(tune_controller, trial)
        elif result.get(TRAINING_ITERATION, 0) >= end:
            decision = TrialScheduler.STOP
        else:
            decision = TrialScheduler.CONTINUE
            if trial.trial_id not in self._told:
                self._told.add(trial.trial_id)
                tell(trial, Continue(until=int(end) if math.isfinite(end) else None))
        return decision

    def _go_on(self, tune_controller: Any, trial: Any) -> str:
        """Let a trial train on that the scheduler has paused, and that could not go on after that."""
        if trial.trial_id not in self._trains_on:
            self._trains_on.add(trial.trial_id)
            self._note("trains on in place of a pause: its training code writes no checkpoints", trial.trial_id)
        if not self.scheduler.trains_on(tune_controller, trial):
            self._exempt[trial.trial_id] = trial
            tell(trial, Continue(None))
        return str(TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the scheduler's choice, else a repetition or a branch; none while the sweep ends."""
        if self._queue.held:
            return None
        chosen = self.scheduler.choose_trial_to_run(tune_controller)
        if chosen is None:
            exempt = self._exempt.values()
            waiting = (trial for status in (Trial.PENDING, Trial.PAUSED) for trial in exempt if trial.status == status)
            chosen = next(waiting, None)
        resumes = chosen is not None and chosen.status == Trial.PAUSED and not self.scheduler.pauses
        return None if resumes and not self._queue.has_room() else chosen
