"""The training of recovery.py's peers, the moment at which a rank is killed, and the events that are measured.

A job is one training on 2 ranks. Model, data, Trainer settings and the callback that kills and measures are those of
:mod:`fault_parts` for all peers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workload import run_job

VICTIM = 1
"""The rank that is killed."""
FAULT = "fault.json"


@dataclass(frozen=True)
class Fault:
    """One training with one fault; ``folder`` takes its events and storage.

    It dies in the middle of an epoch, once 2 are finished and ``after_s`` seconds have passed since it began. It is
    over when the epoch that was interrupted is, on ``size`` ranks, or ``limit_s`` seconds after the fault.
    """

    folder: str
    ranks: int = 2
    repeats: int = 20
    """How often an epoch goes through the training images."""
    after_s: float = 0.0
    size: int = 2
    limit_s: float = 40.0
    kill: bool = True
    """Whether a rank is killed; what else there is to survive comes from the peer."""

    @classmethod
    def load(cls, path: str | Path) -> Fault:
        """Read a job that :meth:`save` wrote."""
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    def note(self, epoch: int) -> None:
        """Write down, for whoever looks at the next batches, that what there is to survive begins now."""
        draft = Path(self.folder, f"{FAULT}.draft")
        draft.write_text(json.dumps({"time": time.time(), "epoch": epoch}))
        draft.replace(Path(self.folder, FAULT))

    def noted(self) -> dict[str, Any] | None:
        """Return what :meth:`note` wrote, None before."""
        try:
            found: dict[str, Any] = json.loads(Path(self.folder, FAULT).read_text())
        except FileNotFoundError:
            return None
        return found

    def collect(self) -> list[dict[str, Any]]:
        """Return all ranks' events in the order of their times, the fault as one of them."""
        events = [
            {**json.loads(line), "rank": int(path.stem.split("-")[1])}
            for path in Path(self.folder).glob("events-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        fault = self.noted()
        return sorted([*events, *([{**fault, "event": "fault"}] if fault else [])], key=lambda one: float(one["time"]))


def run_fault(run: Callable[[Fault, argparse.Namespace], None], parser: argparse.ArgumentParser | None = None) -> None:
    """Run a peer of recovery.py from its command line."""
    run_job(run, Fault.load, Fault.collect, parser)
