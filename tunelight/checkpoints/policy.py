"""Which checkpoints a trial writes and keeps: the setting, and the policy that decides when one is due."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from tunelight.errors import SettingsError, known_fields, number, whole

FREE_S = 1.0
"""Seconds for which checkpoints may block training before their share of the time counts: a short trial skips none."""


@known_fields
@dataclass(frozen=True)
class Checkpoints:
    """Which checkpoints are kept, and when they are written.

    Args:
        keep: how many of the best are kept (1), beside the last and the one before it.
        every: a checkpoint is written every ``every`` reports (1);
        every_s: at least this many seconds after the last one (0);
        share: and only while checkpoints block training for at most this share of the time (0.05), unless it is one of
            the best ``keep`` so far.

    A fit's last one, and that of a report at which the trial is stopped, is written whatever these say.

    Raises: SettingsError.
    """

    keep: int = 1
    every: int = 1
    every_s: float = 0.0
    share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("keep", "every"):
            object.__setattr__(self, name, whole(f"checkpoints: {name}", getattr(self, name)))
        for name in ("every_s", "share"):
            object.__setattr__(self, name, number(f"checkpoints: {name}", getattr(self, name), zero=name == "every_s"))
        if self.share > 1:
            raise SettingsError(f"checkpoints: share must be 1 or less (0.05: a twentieth), not {self.share!r}.")


@dataclass(slots=True)
class CheckpointPolicy:
    """Decides when a trial writes a checkpoint, so that this blocks training for a small share of the time only.

    All times are seconds of one clock, whichever.

    Args:
        started: when training started.
        limits: ``every_s`` and ``share`` are obeyed here.
    """

    started: float
    limits: Checkpoints = Checkpoints()
    blocked_s: float = 0.0
    """How long checkpoints have blocked training."""
    last_s: float = 0.0
    """How long the last one did."""
    last_at: float | None = None
    """When the last one was written."""
    mode: Literal["min", "max"] = "min"
    """Which values are better."""
    best: list[float] = field(default_factory=list)
    """The best values of those written, as losses, in order: as many as are kept."""

    def due(self, now: float) -> bool:
        """Tell whether ``every_s`` seconds have passed since the last checkpoint."""
        return self.last_at is None or now - self.last_at >= self.limits.every_s

    def allowance_s(self, now: float) -> float:
        """Return for how long the next checkpoint may block before it is itself written; below 0: not at all."""
        return FREE_S + self.limits.share * (now - self.started) - self.blocked_s - self.last_s

    def keeps(self, value: float | None) -> bool:
        """Tell whether a checkpoint with this value is one of the best that are kept."""
        if value is None or not math.isfinite(value):
            return False
        return len(self.best) < self.limits.keep or self._loss(value) < self.best[-1]

    def kept(self, value: float | None) -> None:
        """Note the value of a checkpoint that is complete."""
        if value is not None and self.keeps(value):
            self.best = sorted([*self.best, self._loss(value)])[: self.limits.keep]

    def _loss(self, value: float) -> float:
        return value if self.mode == "min" else -value

    def waited(self, seconds: float) -> None:
        """Count time that a checkpoint has blocked before it was written, or instead."""
        self.blocked_s += seconds

    def wrote(self, now: float, seconds: float) -> None:
        """Count a checkpoint that was written at ``now`` and blocked training for ``seconds``."""
        self.blocked_s += seconds
        self.last_s, self.last_at = seconds, now
