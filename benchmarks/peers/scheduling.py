"""The schedulers that benchmarks/schedulers.py compares, as Ray Tune takes them. Each returns a fresh object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, ResourceChangingScheduler
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources, DistributeResourcesToTopJob
from ray.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler

from tunelight.messages import Resize
from tunelight.schedulers import ASHA

JUDGED: dict[str, Any] = {"metric": "accuracy", "mode": "max"}
ETA = 3
MOST = 16


def ray_asha(max_t: int) -> TrialScheduler:
    """Return Ray's ASHA."""
    return AsyncHyperBandScheduler("training_iteration", **JUDGED, max_t=max_t, grace_period=1, reduction_factor=ETA)


def ray_resizing(max_t: int, *, top: bool) -> TrialScheduler:
    """Return Ray's ASHA under a ResourceChangingScheduler that gives a trial at most MOST CPUs.

    ``top``: what is free goes to the trial with the best result; else it is shared.
    """
    each: dict[str, Any] = {"add_bundles": True, "increase_by": {"CPU": 1}, "increase_by_times": MOST - 1}
    share = DistributeResourcesToTopJob(**each, **JUDGED) if top else DistributeResources(**each)
    return ResourceChangingScheduler(ray_asha(max_t), share)


class Doubling(ASHA):
    """ASHA whose trials have twice the workers after each rung, as RASDA has it, where there is room."""

    resizes = True

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        """Decide as ASHA; a trial that goes on past a rung is to double."""
        answer = super().on_trial_result(tune_controller, trial, result)
        at = result.get("training_iteration")
        if answer == TrialScheduler.CONTINUE and at in self.milestones():
            workers = 2 ** (self.milestones().index(at) + 1)
            trial.temporary_state.ray_actor.decide.remote(Resize(min(workers, self.sweep.max_workers or MOST)))
        return answer


class SyneTune(FIFOScheduler):
    """A rung system of Syne Tune as a scheduler of Ray Tune.

    It pauses every trial at every milestone, and when there is room, promotes one or lets a new one start.
    """

    def __init__(self, max_t: int, slots: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        from importlib import import_module

        module = import_module("syne_tune.optimizer.schedulers.legacy_hyperband_promotion")
        levels = [1]
        while levels[-1] * ETA < max_t:
            levels.append(levels[-1] * ETA)
        self._metric, self.mode, self._max_t = JUDGED["metric"], JUDGED["mode"], max_t
        self._rungs = module.PromotionRungSystem(
            levels, [1 / ETA] * len(levels), self._metric, self.mode, "training_iteration", max_t
        )
        self._slots = slots
        self._trials: dict[str, Trial] = {}
        self._next: Trial | None = None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Tell of a new trial."""
        self._trials[trial.trial_id] = trial
        self._rungs.on_task_add(trial.trial_id, skip_rungs=0, new_config=True)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Ask what is to become of a trial."""
        if result["training_iteration"] >= self._max_t:
            return TrialScheduler.CONTINUE  # it ends by itself
        goes_on = self._rungs.on_task_report(trial.trial_id, result, skip_rungs=0)["task_continues"]
        if not goes_on:
            self._rungs.on_task_remove(trial.trial_id)
        return TrialScheduler.CONTINUE if goes_on else TrialScheduler.PAUSE

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Promote a trial when there is room; end the paused ones when nobody is left to promote."""
        controller = getattr(tune_controller, "_tune_controller", tune_controller)
        running = len(controller._running_trials)
        started = sum(trial in controller._trial_to_actor for trial in controller._pending_trials)
        if self._next is None and running + started < self._slots:
            found = self._rungs.on_task_schedule("new")
            if found:
                again = {key: found[key] for key in ("resume_from", "milestone")}
                self._rungs.on_task_add(found["trial_id"], skip_rungs=0, new_config=False, **again)
                self._next = self._trials[found["trial_id"]]
        if self._next is not None and self._next.status == Trial.PAUSED:  # else it writes its checkpoint
            chosen, self._next = self._next, None
            return chosen
        if not running and not controller._pending_trials and self._next is None:
            for trial in list(controller._paused_trials):
                controller.stop_trial(trial)
        return None
