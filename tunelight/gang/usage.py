"""What the workers of a gang use: when each samples it, and what the head passes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tunelight.machine.usage import Sampler, joined, used
from tunelight.messages import Usage, Used

EVERY_S: Final = 5.0
"""How often a worker is sampled while it trains."""


class Meter:
    """Says when one trial is sampled: every ``EVERY_S`` seconds, and with its first event at the latest.

    Runs on: worker, in the thread that answers a poll.
    """

    def __init__(self, sampler: Sampler, clock: Callable[[], float] = time.monotonic) -> None:
        self._sampler, self._clock = sampler, clock
        self._taken = False
        sampler.rest()
        self._due = clock() + EVERY_S

    @property
    def left_s(self) -> float:
        """How many seconds are left until the next sample is due."""
        return max(0.0, self._due - self._clock())

    def read(self, *, told: bool) -> tuple[Usage, ...]:
        """Return a sample, if one is due. ``told``: whether the trial has events to tell, such as its first report."""
        if self.left_s and (self._taken or not told):
            return ()
        self._due, self._taken = self._clock() + EVERY_S, True
        try:
            return (self._sampler.sample(),)
        except Exception:  # noqa: BLE001 - no trial ends for what cannot be measured
            return ()


class UsageLog:
    """Keeps what the ranks of a trial have used since that was last passed on. Runs on: trial (the head's process)."""

    def __init__(self) -> None:
        self._trial: str | None = None
        self._heard: dict[int, Used] = {}

    def begin(self, trial_id: str) -> None:
        """Forget another trial's samples; those of a start of the same trial are kept."""
        if trial_id != self._trial:
            self._trial, self._heard = trial_id, {}

    def hear(self, rank: int, samples: Sequence[Usage]) -> None:
        """Note samples of a rank, in order."""
        for sample in samples:
            self._heard[rank] = joined(self._heard.get(rank), used(sample))

    def news(self) -> tuple[dict[str, Any], ...] | None:
        """Return what each rank has used since the last call, with its ``rank``; None without a new sample."""
        heard, self._heard = self._heard, {}
        return tuple({"rank": rank, **heard[rank].asdict()} for rank in sorted(heard)) or None
