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
IDLE: Final = 0.4
"""The part of the time below which GPUs count as idle."""
_JUDGED_FROM: Final = 12
"""Samples of a rank."""
_MB: Final = 1e6


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
        self._warned = False

    def hear(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Note what the head of the trial passed on (see :meth:`tunelight.gang.usage.UsageLog.news`)."""
        for one in found:
            last, peak = Usage(**one["last"]), Usage(**one["peak"])
            later = Used(one["samples"], last, peak, one["gpu"])
            self._ranks[one["rank"]] = joined(self._ranks.get(one["rank"]), later)

    @property
    def lasts(self) -> bool:
        """Whether a rank has more than the one sample that every trial has, which its peaks say as well."""
        return any(used.samples > 1 for used in self._ranks.values())

    def latest(self, workers: int | None) -> dict[str, Any]:
        """Return the fields of a line with each rank's last sample; of ``workers`` ranks, where that is known."""
        return _by_rank([None if used is None else used.last for used in self._in_order(workers)])

    def peak(self) -> dict[str, Any]:
        """Return the fields of a line with the most that each rank has used, and how busy the GPUs were."""
        fields = {"peak": True, **_by_rank([None if used is None else used.peak for used in self._in_order(None)])}
        if (busy := self._busy()) is not None:
            fields |= {"mean_gpu": round(busy, 2), "samples": sum(used.samples for used in self._ranks.values())}
        return fields

    def warning(self) -> str | None:
        """Return what is worth a note, once: that the GPUs idle."""
        busy = self._busy()
        long_enough = any(used.samples >= _JUDGED_FROM for used in self._ranks.values())
        if self._warned or busy is None or busy >= IDLE or not long_enough:
            return None
        self._warned = True
        return f"its GPUs were used {busy:.2f} of the time: is the data loader slow?"

    def _busy(self) -> float | None:
        return mean([(used.gpu, used.samples) for used in self._ranks.values()])

    def _in_order(self, workers: int | None) -> list[Used | None]:
        known = max(self._ranks, default=-1) + 1
        return [self._ranks.get(rank) for rank in range(known if workers is None else min(known, workers))]


def _by_rank(usages: list[Usage | None]) -> dict[str, list[float | None]]:
    """Return each quantity as a list, rounded: memory in MB. Those that no rank knows are left out."""
    fields: dict[str, list[float | None]] = {
        "cpu": [None if one is None else round(one.cpu, 2) for one in usages],
        "memory": [None if one is None else round(one.memory / _MB) for one in usages],
        "gpu": [None if one is None or one.gpu is None else round(one.gpu, 2) for one in usages],
        "gpu_memory": [
            None if one is None or one.gpu_memory is None else round(one.gpu_memory / _MB) for one in usages
        ],
    }
    return {name: values for name, values in fields.items() if any(value is not None for value in values)}
