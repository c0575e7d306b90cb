"""The population of pbt.py: its members' batches, rates and size, and the events that are measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from events import write_event

BATCHES = 4
"""Batches of an epoch; a report comes after each epoch."""
SAMPLES = 16
"""Rows of a batch, of 64 numbers each."""
RATES = (1e-3, 1e-4)
SPACE = (1e-5, 1e-2)
INTERVAL = 2
"""Reports from one comparison to the next."""
DRIVER = 9
"""The driver's number, beside the ranks, in names of event files."""


@dataclass(frozen=True)
class Population:
    """Two members of ``megabytes`` of weights, that report ``reports`` times; events and storage are in ``folder``."""

    folder: str
    megabytes: float
    reports: int
    ranks: int = 2

    @classmethod
    def load(cls, path: str | Path) -> Population:
        """Read a job that :meth:`save` wrote."""
        return cls(**json.loads(Path(path).read_text()))

    def save(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @property
    def width(self) -> int:
        """The width of two hidden layers with which weights take ``megabytes``."""
        return math.ceil(math.sqrt(self.megabytes * 1e6 / 4 + 32**2) - 32)

    def collect(self) -> list[dict[str, Any]]:
        """Return all events, of driver and ranks, in the order of their times."""
        events = [
            {**json.loads(line), "rank": int(path.stem.split("-")[1])}
            for path in Path(self.folder).glob("events-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return sorted(events, key=lambda event: float(event["time"]))

    def decided(self) -> None:
        """Note the decision that the second member learns from the first. Runs on: driver."""
        write_event(self.folder, DRIVER, 1, "decision")
