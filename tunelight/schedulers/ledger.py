"""What the trials of a sweep hold of its cluster, counted here: Tune starts whatever is pending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunelight.compat.ray import cluster_size

_NAMES: Final = ("CPU", "GPU")


@dataclass(frozen=True, slots=True)
class Need:
    """What one trial's reservation holds: all of it, and each of its ``workers``, by resource name."""

    workers: int
    whole: tuple[float, ...]
    worker: tuple[float, ...]

    @classmethod
    def of(cls, trial: Any) -> Need | None:
        """Return what a trial reserves; None where it does not say."""
        factory = getattr(trial, "placement_group_factory", None)
        if factory is None:
            return None
        bundles: list[Mapping[str, float]] = factory.bundles
        alone = len(bundles) == 1 or factory.head_bundle_is_empty
        workers = len(bundles) if alone else len(bundles) - 1
        whole = tuple(sum(bundle.get(name, 0.0) for bundle in bundles) for name in _NAMES)
        return cls(workers, whole, tuple(bundles[-1].get(name, 0.0) for name in _NAMES))


class Ledger:
    """Counts what trials hold against what the cluster has (CPUs and GPUs; of other resources Tune tells nothing).

    Where the cluster's size is unknown, everything fits and nothing is free.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[Need, int]] = {}
        self._used = [0.0] * len(_NAMES)
        self.capacity: tuple[float, ...] | None = None
        self.kept_cpus = 0.0
        """CPUs that no trial is to have: a sweep's datasets are preprocessed on them."""

    def look(self, tune_controller: Any) -> None:
        """Ask Tune how large the cluster is now."""
        cpus, gpus = cluster_size(tune_controller) or (0.0, 0.0)
        size = (max(0.0, cpus - self.kept_cpus), gpus)
        self.capacity = size if any(size) else None

    def hold(self, trial_id: str, need: Need | None, workers: int | None = None) -> None:
        """Note that a trial holds its reservation, with ``workers`` in all where that is more."""
        if need is None:
            return
        self.release(trial_id)
        extra = max((workers or 0) - need.workers, 0)
        self._held[trial_id] = (need, extra)
        self._add(need, extra, 1)

    def release(self, trial_id: str) -> None:
        """Note that a trial holds nothing any more."""
        if trial_id in self._held:
            need, extra = self._held.pop(trial_id)
            self._add(need, extra, -1)

    def workers(self, trial_id: str) -> int:
        """Return how many workers a trial holds; 0 for one that holds nothing."""
        need, extra = self._held.get(trial_id, (None, 0))
        return need.workers + extra if need else 0

    def fits(self, need: Need | None) -> bool:
        """Tell whether there is room for one more trial."""
        if need is None or self.capacity is None:
            return True
        return all(
            used + more <= most + 1e-6 for used, more, most in zip(self._used, need.whole, self.capacity, strict=True)
        )

    def free(self, need: Need | None) -> int:
        """Return for how many more single workers there is room."""
        return self._count(need, self._used)

    def total(self, need: Need | None) -> int:
        """Return how many workers there would be room for if nothing were held."""
        return self._count(need, [0.0] * len(_NAMES))

    def _count(self, need: Need | None, used: list[float]) -> int:
        if need is None or self.capacity is None or not any(need.worker):
            return 0
        left = [
            (most - taken + 1e-6) // each
            for most, taken, each in zip(self.capacity, used, need.worker, strict=True)
            if each
        ]
        return max(int(min(left)), 0)

    def _add(self, need: Need, extra: int, sign: int) -> None:
        for number, (whole, each) in enumerate(zip(need.whole, need.worker, strict=True)):
            self._used[number] += sign * (whole + extra * each)
        if not self._held:
            self._used = [0.0] * len(_NAMES)  # what rounding left
