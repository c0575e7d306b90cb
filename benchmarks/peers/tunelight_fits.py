"""Rows a, c and g: tunelight's strategies from a driver of their own, the gang warm from the second fit on."""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path
from typing import Any

from events import write_event
from fits import Fits, run_fits, timed

SAMPLE_S = 0.005
_FIELDS = {"RssAnon": "private", "RssShmem": "shared"}


class Memory:
    """Samples processes' memory while a fit runs: what is private to each, and pages of Ray's store that it has read.

    Workers are watched from here, so that nothing of this runs in them. Runs on: driver.
    """

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = {pid: read_memory(pid) for pid in pids}
        self.peak = {pid: dict(found) for pid, found in self.before.items()}

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while self._pids and not self._stop.wait(SAMPLE_S):
            for pid, peak in self.peak.items():
                found = read_memory(pid)
                found["both"] = sum(found.values())
                for name, value in found.items():
                    peak[name] = max(peak.get(name, 0), value)

    def grown(self, pid: int) -> dict[str, int]:
        """Return by how many bytes each figure rose at its peak above where it began."""
        before = {**self.before[pid], "both": sum(self.before[pid].values())}
        return {name: value - before[name] for name, value in self.peak[pid].items()}


def read_memory(pid: int) -> dict[str, int]:
    """Return a process's resident bytes, private ones and those in shared memory; zeros for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    found = dict.fromkeys(_FIELDS.values(), 0)
    for line in lines:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(rest.split()[0]) * 1024
    return found


def fit_all(job: Fits, _: argparse.Namespace) -> None:
    """Run every fit from this process, Ray's start included in the first."""
    from models import build

    import tunelight as tl

    strategies: dict[str, Any] = {
        "ddp": tl.RayStrategy,
        "horovod": tl.HorovodRayStrategy,
        "sharded": tl.RayShardedStrategy,
    }
    pids = {"driver": os.getpid()}
    for index, fit in enumerate(job.fits):
        strategy = strategies[fit.strategy](num_workers=job.ranks)
        trainer, model = build(job, index, strategy=strategy)
        with Memory(list(pids.values()) if fit.watched else []) as memory, timed(job, index):
            trainer.fit(model)
        if fit.watched:
            grown = {name: memory.grown(pid) for name, pid in pids.items()}
            write_event(job.folder, 0, index, "memory", grown=grown)
        if index + 1 < len(job.fits) and job.fits[index + 1].strategy != fit.strategy:
            strategy.shutdown()
        # the gang's processes are known once they have trained, which is what a later fit is watched for
        ranks = job.collect()[index]["ranks"]
        pids = {"driver": os.getpid(), **{rank: event["pid"] for rank, event in ranks.items()}}


if __name__ == "__main__":
    run_fits(fit_all)
