"""What the workers of trials use, in a record: how much room it may take there, and what is written of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tunelight.machine.usage import joined, mean
from tunelight.messages import Usage, Used
from tunelight.record.folder import encode
from tunelight.record.gpu_use import GpuUse, causes, gpu_use, idle_gpus

USAGE: Final = "usage"
"""The kind of line."""
FIRST_BYTES: Final = 64_000
"""How many bytes its lines may take in a short record."""
SHARE: Final = 0.01
"""How much of the record they may take beyond."""
OF_SAMPLES: Final = 0.5
"""How much of that samples may take; the rest is for the peaks of trials that end later."""
_FRAME: Final = 60
"""More bytes than a line has beside its fields."""
_JUDGED_FROM: Final = 12
"""Samples of a rank."""
_ROUNDED: Final[dict[str, tuple[int | None, float]]] = {
    "cpu": (2, 1.0),
    "memory": (None, 1e6),
    "gpu": (2, 1.0),
    "gpu_memory": (None, 1e6),
    "gpu_memory_total": (None, 1e6),
    "gpu_power": (None, 1.0),
}
"""The quantities of a line: digits, and what they are counted in."""


class Budget:
    """How much of a record may say what workers use. ``sizes``: the bytes of its lines by kind, as they grow."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def allows(self, fields: Mapping[str, Any], share: float = 1.0) -> bool:
        """Tell whether a line with some fields may be written, where ``share`` is how much of the room is for such."""
        taken = self._sizes.get(USAGE, 0) + len(encode(fields)) + _FRAME
        return taken <= share * (FIRST_BYTES + SHARE * sum(self._sizes.values()))


class TrialUsage:
    """What the workers of one trial have used while this driver listened, by rank."""

    def __init__(self) -> None:
        self._ranks: dict[int, Used] = {}
        self._unwritten: dict[int, Used] = {}
        """Since the last line that was written."""

    def hear(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Note what the head of the trial passed on (see :meth:`tunelight.gang.usage.UsageLog.news`)."""
        for one in found:
            rank, last, peak = one["rank"], Usage(**one["last"]), Usage(**one["peak"])
            later = Used(one["samples"], last, peak, one.get("gpu"), one.get("cpu"), one.get("gpu_power"))
            for known in (self._ranks, self._unwritten):
                known[rank] = joined(known.get(rank), later)

    @property
    def lasts(self) -> bool:
        """Whether a rank has more than the one sample that every trial has, which its peaks say as well."""
        return any(used.samples > 1 for used in self._ranks.values())

    def latest(self, workers: int | None) -> dict[str, Any]:
        """Return the fields of a line with each rank's last sample; of ``workers`` ranks, where that is known."""
        lasts = [None if used is None else used.last for used in self._in_order(workers)]
        return {**_by_rank(lasts), **_means(self._unwritten)}

    def peak(self) -> dict[str, Any]:
        """Return the fields of a line with the most that each rank has used."""
        peaks = [None if used is None else used.peak for used in self._in_order(None)]
        return {"peak": True, **_by_rank(peaks), **_means(self._unwritten)}

    def written(self) -> None:
        """Note that a line was written: the means of the next one are of the samples from now on."""
        self._unwritten = {}

    def idle(self, told: Mapping[str, Any]) -> GpuUse | None:
        """Return how its GPUs were used, once they have idled for long enough; None until then.

        ``told``: facts of the sweep (see :func:`gpu_use`).
        """
        if not any(used.samples >= _JUDGED_FROM for used in self._ranks.values()):
            return None
        use = gpu_use([_most(self._ranks)], told)
        return use if use is not None and use.idle else None

    def _in_order(self, workers: int | None) -> list[Used | None]:
        known = max(self._ranks, default=-1) + 1
        return [self._ranks.get(rank) for rank in range(known if workers is None else min(known, workers))]


class IdleGpus:
    """Says of the trials of a sweep that their GPUs idle: once for each likely cause. Runs on: driver."""

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()

    def word(self, use: GpuUse | None) -> str | None:
        """Return what is worth a note, if anything is."""
        if use is None:
            return None
        found = tuple(cause.why for cause in causes(use))
        if found in self._said:
            return None
        self._said.add(found)
        return idle_gpus(use)


def _most(ranks: Mapping[int, Used]) -> dict[str, float]:
    """Return what ranks have used as ``TrialState.peak`` does."""
    by_rank = _by_rank([used.peak for used in ranks.values()])
    most = {name: max(value for value in values if value is not None) for name, values in by_rank.items()}
    return most | _means(ranks)


def _by_rank(usages: list[Usage | None]) -> dict[str, list[float | None]]:
    """Return each quantity as a list, rounded: memory in MB. Those that no rank knows are left out."""
    fields = {
        name: [None if one is None else _rounded(getattr(one, name), digits, unit) for one in usages]
        for name, (digits, unit) in _ROUNDED.items()
    }
    return {name: values for name, values in fields.items() if any(value is not None for value in values)}


def _rounded(value: float | None, digits: int | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, digits)


def _means(ranks: Mapping[int, Used]) -> dict[str, float]:
    """Return the means over all ranks and samples, and of how many samples: only of workers that have GPUs."""
    fields: dict[str, float] = {}
    for name, digits in (("gpu", 3), ("gpu_power", 1), ("cpu", 2)):
        found = mean([(getattr(used, name), used.samples) for used in ranks.values()])
        if found is not None and (fields or name != "cpu"):
            fields[f"mean_{name}"] = round(found, digits)
    return {**fields, "samples": sum(used.samples for used in ranks.values())} if fields else {}
