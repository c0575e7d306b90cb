"""Nodes that are about to be taken away, of which Ray is notified before (a drain)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import ray
from ray.exceptions import RayActorError

from tunelight.compat.ray import draining_nodes
from tunelight.gang.gang import Gang
from tunelight.messages import WorkerError

DRAINED: Final = "NodeDrained"
"""The type of the error by which a trial leaves its nodes."""
LOOK_S: Final = 2.0
"""How often a head asks for drain notices: a preemptible node has at least half a minute from its notice on."""


class DrainWatch:
    """Tells, at most every ``LOOK_S`` seconds, whether a trial's nodes are drained. Runs on: trial."""

    def __init__(
        self,
        look: Callable[[], Mapping[str, int]] = draining_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._clock = look, clock
        self._next = 0.0
        self._drained: Mapping[str, int] = {}

    def drained(self, nodes: Iterable[str]) -> list[str]:
        """Return those of ``nodes`` that are known to be drained."""
        now = self._clock()
        if now >= self._next:
            self._next = now + LOOK_S
            try:
                self._drained = self._look()
            except Exception:  # noqa: BLE001 - a cluster that does not answer is noticed elsewhere
                return []
        return [node for node in dict.fromkeys(nodes) if node in self._drained]


def reason_to_leave(gang: Gang, *, with_head: bool = True) -> Callable[[], str | None] | None:
    """Return a function that returns why a gang (and its head) has to leave its nodes, or None if it need not.

    Returns None where Ray is not connected.
    """
    if not ray.is_initialized():
        return None
    watch, mine = DrainWatch(), ray.get_runtime_context().get_node_id()

    def why() -> str | None:
        hosts = {mine: os.uname().nodename} if with_head else {}
        hosts |= {location.node_id: location.hostname for location in gang.locations}
        drained = watch.drained(hosts)
        return f"Ray drains {', '.join(f'{hosts[node]}#{node[:6]}' for node in drained)}" if drained else None

    return why


def moved_away(error: WorkerError) -> RayActorError:
    """Return the error on which Tune restarts a trial on other nodes without counting a failure."""
    return RayActorError(error_msg=error.message, preempted=True)
