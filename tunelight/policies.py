"""Plain deciders: what to do when something went wrong. They decide; the trainable acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tunelight.messages import WorkerError


class FailureDecision(Enum):
    """What is to become of a trial that failed."""

    RETRY = "retry"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Retry a failed trial from its last checkpoint, up to ``max_failures`` times (-1: always)."""

    max_failures: int = 0

    def delay_s(self, failures: int) -> float:
        """Return how long to wait before another try, in seconds: 0, 1, 2, 4, at most 30."""
        return 0.0 if failures < 2 else min(2.0 ** (failures - 2), 30.0)

    def decide(self, error: WorkerError, failures: int) -> FailureDecision:
        """Decide after failure number ``failures`` (1-based) of a trial."""
        del error  # later policies tell a preemption from a bug
        if self.max_failures < 0 or failures <= self.max_failures:
            return FailureDecision.RETRY
        return FailureDecision.GIVE_UP
