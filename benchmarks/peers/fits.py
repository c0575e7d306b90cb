"""The jobs of strategies.py's peers, and the events by which they are timed.

A job is a list of fits that one process runs one after another, so that later ones find warm workers, if it
keeps any. Model, data, Trainer and measuring callback are those of :mod:`models` for all peers.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from jobs import Work


@dataclass(frozen=True)
class Fit:
    """One call of ``fit``: ``steps`` optimizer steps on ``batch`` samples, those of all ranks together."""

    part: str
    row: str
    model: str
    steps: int
    batch: int = 32
    warmup: int = 1
    """Steps at the beginning that are not measured."""
    optimizer: str = "sgd"
    strategy: str = "ddp"
    """Which of tunelight's strategies; the other peers have one each."""
    watched: bool = False
    """Whether tunelight's processes have their memory sampled, which costs time; a fit before it finds them."""


@dataclass(frozen=True, kw_only=True)
class Fits(Work):
    """One process's work."""

    fits: list[Fit]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a job."""
        fields = json.loads(Path(path).read_text())
        return cls(**{**fields, "fits": [Fit(**fit) for fit in fields["fits"]]})

    def collect(self) -> list[dict[str, Any]]:
        """Return one dict a fit: its fields, ``driver`` with its times, ``ranks`` with each rank's, ``memory``."""
        found: list[dict[str, Any]] = [{**asdict(fit), "ranks": {}} for fit in self.fits]
        for event in self.events():
            if event["event"] == "trained":
                found[event["trial"]]["ranks"][str(event["rank"])] = event
            else:
                found[event["trial"]][event["event"]] = event
        return found

    @contextlib.contextmanager
    def timed(self, index: int) -> Iterator[None]:
        """Write down when a fit was called and when it returned. Runs on: driver."""
        begin = time.time()
        yield
        self.tell(0, index, "driver", begin=begin, end=time.time())
