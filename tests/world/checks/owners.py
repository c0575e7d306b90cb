"""Each run of a sweep ends once; `World.drive` checks that no driver returns results of a sweep that it has lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.world.checks import Ended

_ENDS_S = 20.0
"""How long a driver that has lost its sweep may take to end, once it is awake."""
_HINDERED = ("cut", "store", "disk", "slow", "SIGTERM")
"""What of the faults may make it take longer."""


def wrong(ended: Ended) -> Iterator[str]:
    if (runs := sum(line["kind"] == "end" for line in ended.lines)) > len(ended.state.runs):
        yield f"{len(ended.state.runs)} runs have ended {runs} times"


def now(world: Any) -> Iterator[str]:
    """Look whether a driver that has lost the sweep goes on."""
    owners = world.owners()
    for process in world.drivers:
        own = [one.generation for one in owners if one.pid == process.pid]
        lost = process.alive and process.threads and not process.stopped and own and own[-1] < len(owners)
        since = process.locals["lost"] = (process.locals.get("lost") or world.kernel.now) if lost else None
        hindered = since is not None and world.suffered(*_HINDERED, since=since)
        if since is not None and world.kernel.now - since > _ENDS_S and not hindered:
            yield f"{process} has lost the sweep {world.kernel.now - since:.0f} s ago, and goes on"
