"""The phases of a run: values that say what its ranks do now, and what they are ordered to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tunelight.gang.orders import Reason
from tunelight.messages import WorkerError
from tunelight.policies import COOLDOWN_S

_LONGEST_PAUSE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Training:
    """The ranks train, or have ended. They may be ordered to leave from ``movable_at`` on."""

    movable_at: float = -math.inf
    """Infinite for training code that writes no checkpoints: it cannot leave without losing what it has learned."""
    pause_s: float = COOLDOWN_S
    """How long to wait once the storage refuses a checkpoint."""

    def refused(self, now: float) -> Training:
        """Return the phase after a checkpoint that the storage refused: each pause is twice the one before."""
        return Training(now + self.pause_s, min(2 * self.pause_s, _LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class Leaving:
    """The ranks are ordered to write a checkpoint at the end of a training step, or their next report, and to end."""

    serial: int
    """The serial of that order, which its answer carries."""
    why: Reason | None
    """Why they have to leave their nodes; None where they start again on another number of workers."""
    training: Training
    """The phase to return to where they write no checkpoint."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run has failed, which is raised after all events that came before."""

    error: WorkerError


@dataclass(frozen=True, slots=True)
class Over:
    """The run has failed, and that was raised."""
