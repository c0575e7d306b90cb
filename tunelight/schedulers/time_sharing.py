"""Time sharing: how a population that is larger than the cluster takes turns on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ray.tune.experiment import Trial

from tunelight.compat.ray import cluster_size

Order = Callable[[Any], tuple[int, int]]
"""How much a trial has had of the cluster, as a sort key: those that have had less come first."""


def next_trial(controller: Any, order: Order) -> Any:
    """Return the trial to run next: the first in order of the pending ones, else of the paused ones.

    Only one paused trial at a time becomes pending, so that one that pauses later with less may still come first.
    """
    trials = controller.get_trials()
    for status in (Trial.PENDING, Trial.PAUSED):
        waiting = [trial for trial in trials if trial.status == status]
        if waiting:
            return min(waiting, key=order)
    return None


def should_yield(controller: Any, trial: Any, order: Order) -> bool:
    """Tell whether a trial should release its gang: another one waits that has had no more, and there is no room."""
    try:
        live = [one for one in controller.get_live_trials() if not one.is_finished()]
        waiting = [one for one in live if one is not trial and one.status in (Trial.PENDING, Trial.PAUSED)]
        return len(live) > max_gangs(controller, trial) and any(order(one)[0] <= order(trial)[0] for one in waiting)
    except AttributeError:  # a controller that only stands in for Tune's
        return False


def max_gangs(controller: Any, trial: Any) -> float:
    """Return how many gangs like this trial's the cluster can hold, by CPUs and GPUs; infinity if that is not known."""
    size = cluster_size(controller)
    if size is None:
        return math.inf
    count = math.inf
    for name, total in zip(("CPU", "GPU"), size, strict=True):
        needed = sum(bundle.get(name, 0) for bundle in trial.placement_group_factory.bundles)
        if needed:
            count = min(count, math.floor(total / needed + 1e-9))
    return count
