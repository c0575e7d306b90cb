"""SweepScheduler: the scheduler that Tune's controller has in a sweep, which wraps the sweep's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunelight.compat.controller import mend, put_aside
from tunelight.compat.ray import TRAINING_ITERATION
from tunelight.messages import RESULT_KEY, Continue
from tunelight.schedulers.base import GangScheduler
from tunelight.schedulers.common import tell

_PAUSABLE: Final = f"{RESULT_KEY}/pausable"


class SweepScheduler:
    """Passes everything on to a scheduler, but for repetitions, trials that leave, and while the sweep is paused.

    A repetition or a branch competes with no other trial: the scheduler never learns of it, and it
    trains to a fixed report. While the sweep is paused no trial begins or goes on, and those that can are paused at
    their next report.

    Args:
        scheduler: the sweep's own; further attributes are its own.
        ends_at: returns the report at which such a trial is stopped (infinite: it ends by itself), and None for other
            trials (None: there are no such trials).
        has_room: whether another trial may run.
        can_pause: whether a trial could go on after a pause: it writes checkpoints.
        note: called with a text on a trial, and its id.

    Runs on: driver.
    """

    def __init__(
        self,
        scheduler: GangScheduler,
        *,
        ends_at: Callable[[str], float | None] | None = None,
        has_room: Callable[[], bool] = lambda: True,
        can_pause: Callable[[str], bool] = lambda _: True,
        note: Callable[[str, str], object] = lambda *_: None,
    ) -> None:
        self._note = note
        self._trains_on: set[str] = set()
        """Trials that the scheduler was to pause, and that write no checkpoints."""
        self.scheduler = scheduler
        self.can_pause = can_pause
        self.paused = False
        """Whether a person has paused the sweep."""
        self.leaving: set[str] = set()
        """Ids of the trials that were told to leave their workers, and those that have."""
        self.aside: dict[str, Any] = {}
        """Trials without workers, by their ids, which the scheduler takes for waiting ones."""
        self.controller: Any = None
        """Tune's controller, once a trial was added."""
        self._ends_at, self._has_room = ends_at, has_room
        self._spared: dict[str, Any] = {}
        """Trials of which the scheduler does not learn, by their ids."""
        self._told: set[str] = set()
        """Those whose gang was told its end."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "scheduler":  # as where it is copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def _call(self, name: str, *given: Any) -> Any:
        """Call a method of the scheduler."""
        return getattr(self.scheduler, name)(*given)

    def _end(self, trial: Any) -> float | None:
        """Return the report at which a repetition is stopped; None for other trials."""
        end = None if self._ends_at is None else self._ends_at(trial.trial_id)
        return math.inf if end is None and trial.trial_id in self._spared else end

    def _pass_on(self, name: str, tune_controller: Any, trial: Any, *more: Any) -> None:
        """Call a method of the scheduler, but for a repetition."""
        if self._end(trial) is None:
            self._call(name, tune_controller, trial, *more)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Pass on a new trial."""
        if self.controller is None:
            mend(tune_controller)
        self.controller = tune_controller
        if self._end(trial) is not None:
            self._spared[trial.trial_id] = trial
        self._pass_on("on_trial_add", tune_controller, trial)
        if trial.trial_id in self.leaving and trial.status == Trial.PENDING and put_aside(tune_controller, trial):
            self.aside[trial.trial_id] = trial

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
        """Return the scheduler's decision; while the sweep is paused, PAUSE for a trial that may go on."""
        end = self._end(trial)
        if end is None:
            decision = str(self._call("on_trial_result", tune_controller, trial, result))
            if decision == TrialScheduler.PAUSE and not result.get(_PAUSABLE, True):
                return self._go_on(tune_controller, trial)
        elif result.get(TRAINING_ITERATION, 0) >= end:
            decision = TrialScheduler.STOP
        else:
            decision = TrialScheduler.CONTINUE
            if trial.trial_id not in self._told:
                self._told.add(trial.trial_id)
                tell(trial, Continue(until=int(end) if math.isfinite(end) else None))
        goes_on = decision == TrialScheduler.CONTINUE and not self.scheduler.pauses
        return TrialScheduler.PAUSE if self.paused and goes_on and self.can_pause(trial.trial_id) else decision

    def _go_on(self, tune_controller: Any, trial: Any) -> str:
        """Let a trial train on that the scheduler has paused, and that could not go on after that."""
        if trial.trial_id not in self._trains_on:
            self._trains_on.add(trial.trial_id)
            self._note("trains on in place of a pause: its training code writes no checkpoints", trial.trial_id)
        if not self.scheduler.trains_on(tune_controller, trial):
            self._spared[trial.trial_id] = trial
            tell(trial, Continue(None))
        return str(TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the scheduler's choice, else a repetition or a branch; none while the sweep is paused."""
        if self.paused:
            return None
        chosen = self._call("choose_trial_to_run", tune_controller)
        if chosen is None:
            spared = self._spared.values()
            waiting = (trial for status in (Trial.PENDING, Trial.PAUSED) for trial in spared if trial.status == status)
            chosen = next(waiting, None)
        if chosen is not None and chosen.trial_id in self.aside:
            return None
        resumes = chosen is not None and chosen.status == Trial.PAUSED and not self.scheduler.pauses
        return None if resumes and not self._has_room() else chosen
