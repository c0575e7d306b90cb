"""The schedulers that benchmarks/schedulers.py compares, as Ray Tune takes them. Each returns a fresh object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, ResourceChangingScheduler
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources, DistributeResourcesToTopJob
from ray.tune.schedulers.trial_scheduler import TrialScheduler

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
