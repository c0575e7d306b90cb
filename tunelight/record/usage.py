"""What the workers of trials use, in a record: how much room it may take there, and what is written of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tunelight.machine.usage import joined, mean
from tunelight.messages import Usage, Used
from tunelight.record.folder import encode

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
_ROUNDED: Final[dict[str, tuple[int | None, float]]] = {
    "cpu": (2, 1.0),
    "memory": (None, 1e6),
    "gpu": (2, 1.0),
    "gpu_memory": (None, 1e6),
    "gpu_memory_total": (None, 1e6),
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
            later = Used(one["samples"], last, peak, one.get("gpu"))
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

    def _in_order(self, workers: int | None) -> list[Used | None]:
        known = max(self._ranks, default=-1) + 1
        return [self._ranks.get(rank) for rank in range(known if workers is None else min(known, workers))]


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
    """Return how busy the GPUs were, as a mean over all ranks and samples, and of how many samples."""
    busy = mean([(used.gpu, used.samples) for used in ranks.values()])
    if busy is None:
        return {}
    return {"mean_gpu": round(busy, 3), "samples": sum(used.samples for used in ranks.values())}


def gpus_busy(peaks: Iterable[Mapping[str, float]]) -> float | None:
    """Return the part of the time, 0 to 1, in which the GPUs of some trials were busy; None where that is not known.

    ``peaks``: what each trial used (``TrialState.peak``).
    """
    return mean([(peak.get("mean_gpu"), int(peak.get("samples", 0))) for peak in peaks])


def percent(part: float) -> str:
    """Return a part as text: ``31 %``."""
    return f"{100 * part:.0f} %"
