"""What a head tells of the workers that its trial holds, for the record: which, from when on, and whether warm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class GangLog:
    """Remembers what was told of a gang, so that only news are. Runs on: trial (the head's process)."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began: float | None = None
        self._told: tuple[Any, ...] = ()

    def begin(self) -> None:
        """Note that a trial is about to start on the gang, or to start again."""
        self._began, self._told = self._clock(), ()

    def news(self, gang: Any) -> dict[str, Any] | None:
        """Return who trains now, if that was not told yet.

        Keys: ``gang`` (an id of its own for each gang), ``nodes`` (host and node of each worker, by rank), ``warm``
        (none of its workers is new), ``began`` and ``ready`` (seconds since the epoch: from when to when
        the trial waited for them to start and to meet).
        """
        if gang is None or not gang.size:
            return None
        places = tuple((one.hostname, one.node_id, one.pid) for one in gang.locations)
        if places == self._told:
            return None
        began, self._told, self._began = self._began, places, None
        return {
            "gang": gang.name,
            "nodes": tuple(f"{host}#{node[:6]}" for host, node, _ in places),
            "warm": gang.warm,
            "began": gang.met_at if began is None else began,
            "ready": gang.met_at if began is None else max(began, gang.met_at),
        }
