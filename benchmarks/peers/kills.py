"""The training of recovery.py's peers, the moment at which a rank is killed, and the events that are measured.

A job is one training on 2 ranks. Model, data, Trainer settings and the callback that kills and measures are those of
:mod:`fault_parts` for all peers.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import Work

VICTIM = 1
"""The rank that is killed."""


@dataclass(frozen=True, kw_only=True)
class Fault(Work):
    """One training with one fault.

    It dies in the middle of an epoch, once 2 are finished and ``after_s`` seconds have passed since it began. It is
    over when the epoch that was interrupted is, on ``size`` ranks, or ``limit_s`` seconds after the fault.
    """

    repeats: int = 20
    """How often an epoch goes through the training images."""
    after_s: float = 0.0
    size: int = 2
    limit_s: float = 40.0
    kill: bool = True
    """Whether a rank is killed; what else there is to survive comes from the peer."""

    @property
    def _note(self) -> Path:
        return Path(self.folder, "fault.json")

    def note(self, epoch: int) -> None:
        """Write down, for whoever looks at the next batches, that what there is to survive begins now."""
        draft = self._note.with_suffix(".draft")
        draft.write_text(json.dumps({"event": "fault", "time": time.time(), "epoch": epoch}))
        draft.replace(self._note)

    def noted(self) -> dict[str, Any] | None:
        """Return what :meth:`note` wrote, None before."""
        try:
            found: dict[str, Any] = json.loads(self._note.read_text())
        except FileNotFoundError:
            return None
        return found

    def collect(self) -> list[dict[str, Any]]:
        """Return all ranks' events in the order of their times, the fault as one of them."""
        fault = self.noted()
        return sorted([*self.events(), *([fault] if fault else [])], key=lambda one: float(one["time"]))
