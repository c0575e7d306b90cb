"""The resources that the trials of a sweep hold, counted here because Tune starts whatever is pending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tunelight.compat.ray import cluster_size

_NAMES: Final = ("CPU", "GPU")


@dataclass(frozen=True, slots=True)
class TrialResources:
    """The reservation of a trial: CPUs and GPUs in ``total`` and ``per_worker``, for its ``workers``."""

    workers: int
    total: tuple[float, ...]
    per_worker: tuple[float, ...]

    @classmethod
    def of(cls, trial: Any) -> TrialResources | None:
        """Return what a trial reserves; None if it does not say."""
        factory = getattr(trial, "placement_group_factory", None)
        if factory is None:
            return None
        bundles = factory.bundles
        head = len(bundles) > 1 and not factory.head_bundle_is_empty
        total = tuple(sum(bundle.get(name, 0.0) for bundle in bundles) for name in _NAMES)
        return cls(len(bundles) - head, total, tuple(bundles[-1].get(name, 0.0) for name in _NAMES))


class Ledger:
    """Counts the CPUs and GPUs that trials hold against those of the cluster; Tune does not report other resources.

    If the cluster's size is unknown, everything fits and nothing is free.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, ...]] = {}
        self._used: tuple[float, ...] = (0.0,) * len(_NAMES)
        self.capacity: tuple[float, ...] | None = None
        self.kept_cpus = 0.0
        """CPUs that trials must not use: a sweep's datasets are preprocessed on them."""

    def update_capacity(self, tune_controller: Any) -> None:
        """Update the size of the cluster from Tune."""
        cpus, gpus = cluster_size(tune_controller) or (0.0, 0.0)
        size = (max(0.0, cpus - self.kept_cpus), gpus)
        self.capacity = size if any(size) else None

    def hold(self, trial_id: str, resources: TrialResources | None, workers: int = 0) -> None:
        """Note that a trial holds its reservation, with ``workers`` in all where that is more."""
        if resources is not None:
            self.release(trial_id)
            extra = max(workers - resources.workers, 0)
            each = zip(resources.total, resources.per_worker, strict=True)
            self._held[trial_id] = tuple(total + extra * one for total, one in each)
            self._used = tuple(map(sum, zip(self._used, self._held[trial_id], strict=True)))

    def release(self, trial_id: str) -> None:
        """Note that a trial has released its resources."""
        released = self._held.pop(trial_id, (0.0,) * len(_NAMES))
        left = zip(self._used, released, strict=True)
        self._used = tuple(used - less if self._held else 0.0 for used, less in left)  # 0: without rounding errors

    def fits(self, resources: TrialResources | None) -> bool:
        """Tell whether there is room for one more trial."""
        if resources is None or self.capacity is None:
            return True
        amounts = zip(self._used, resources.total, self.capacity, strict=True)
        return all(used + more <= capacity + 1e-6 for used, more, capacity in amounts)

    def free(self, resources: TrialResources | None) -> int:
        """Return how many more single workers fit."""
        return self._count(resources, self._used)

    def total(self, resources: TrialResources | None) -> int:
        """Return how many workers would fit in the empty cluster."""
        return self._count(resources, (0.0,) * len(_NAMES))

    def _count(self, resources: TrialResources | None, used: tuple[float, ...]) -> int:
        if resources is None or self.capacity is None or not any(resources.per_worker):
            return 0
        amounts = zip(self.capacity, used, resources.per_worker, strict=True)
        return max(int(min((capacity - taken + 1e-6) // each for capacity, taken, each in amounts if each)), 0)
