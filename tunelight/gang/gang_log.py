"""For the record of a sweep: which workers a trial trains on, from when on, and whether they were warm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tunelight.gang.gang import Gang


class GangLog:
    """Describes a trial's gang each time its workers have changed. Runs on: trial (the head's process)."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began: float | None = None
        self._described: tuple[Any, ...] = ()

    def begin(self) -> None:
        """Note that a trial is about to start on the gang, or to start again."""
        self._began, self._described = self._clock(), ()

    def news(self, gang: Gang) -> dict[str, Any] | None:
        """Return a description of the gang, or None where it is the one returned last.

        Keys: ``gang`` (its id), ``nodes`` (host and node of each worker, by rank), ``warm`` (whether none of its
        workers is new), ``began`` and ``ready`` (seconds since the epoch between which the trial waited for them).
        """
        if not gang.size:
            return None
        workers = tuple((worker.hostname, worker.node_id, worker.pid) for worker in gang.locations)
        if workers == self._described:
            return None
        began, self._described, self._began = self._began, workers, None
        return {
            "gang": gang.name,
            "nodes": tuple(f"{host}#{node[:6]}" for host, node, _ in workers),
            "warm": gang.warm,
            "began": gang.met_at if began is None else began,
            "ready": gang.met_at if began is None else max(began, gang.met_at),
        }
