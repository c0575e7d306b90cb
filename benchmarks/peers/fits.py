"""The jobs of strategies.py's peers, and the events by which they are timed.

A job is a list of fits that one process runs one after another, so that later ones find warm workers, if it
keeps any. Model, data, Trainer and measuring callback are those of :mod:`models` for all peers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from events import write_event
from workload import run_job


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


@dataclass(frozen=True)
class Fits:
    """One process's work; ``folder`` takes its events."""

    fits: list[Fit]
    ranks: int
    folder: str

    @classmethod
    def load(cls, path: str | Path) -> Fits:
        """Read a job that :meth:`save` wrote."""
        fields = json.loads(Path(path).read_text())
        return cls(**{**fields, "fits": [Fit(**fit) for fit in fields["fits"]]})

    def save(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    def collect(self) -> list[dict[str, Any]]:
        """Return one dict a fit: its fields, ``driver`` with its times, ``ranks`` with each rank's, ``memory``."""
        found: list[dict[str, Any]] = [{**asdict(fit), "ranks": {}} for fit in self.fits]
        for path in sorted(Path(self.folder).glob("events-*.jsonl")):
            rank = path.stem.split("-")[1]
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["event"] == "trained":
                    found[event["trial"]]["ranks"][rank] = event
                else:
                    found[event["trial"]][event["event"]] = event
        return found


@contextlib.contextmanager
def timed(job: Fits, index: int) -> Iterator[None]:
    """Write down when a fit was called and when it returned. Runs on: driver."""
    begin = time.time()
    yield
    write_event(job.folder, 0, index, "driver", begin=begin, end=time.time())


def run_fits(run: Callable[[Fits, argparse.Namespace], None]) -> None:
    """Run a peer of strategies.py from its command line."""
    run_job(run, Fits.load, Fits.collect)
