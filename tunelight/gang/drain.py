"""Nodes that are about to be taken away: Ray knows of a drain notice before the node goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import ray
from ray._private.state import state
from ray.exceptions import RayActorError

from tunelight.gang.protocol import LocatedGang
from tunelight.messages import WorkerError

DRAINED: Final = "NodeDrained"
"""The type of the error by which a trial leaves its nodes."""
LOOK_S: Final = 2.0
"""How often a head asks for drain notices: a preemptible node has half a minute and more from its notice on."""


def draining_nodes() -> Mapping[str, int]:
    """Return the ids of nodes that are drained, each with its deadline (ms since the epoch; 0: none)."""
    found: dict[str, int] = state.get_draining_nodes()
    return found


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
        """Return those of ``nodes`` that are drained, as far as is known."""
        now = self._clock()
        if now >= self._next:
            self._next = now + LOOK_S
            try:
                self._drained = self._look()
            except Exception:  # noqa: BLE001 - the head of the cluster does not answer: others watch that
                return []
        return [node for node in dict.fromkeys(nodes) if node in self._drained]


def reason_to_leave(gang: LocatedGang, *, with_head: bool = True) -> Callable[[], str | None] | None:
    """Return a function that says why a gang, and its head, have to leave their nodes (None: they need not).

    Returns None where there is no Ray.
    """
    if not ray.is_initialized():
        return None
    watch, mine = DrainWatch(), ray.get_runtime_context().get_node_id()

    def why() -> str | None:
        hosts = {mine: os.uname().nodename} if with_head else {}
        hosts |= {one.node_id: one.hostname for one in gang.locations}
        drained = watch.drained(hosts)
        return f"Ray drains {', '.join(f'{hosts[node]}#{node[:6]}' for node in drained)}" if drained else None

    return why


def moved_away(error: WorkerError) -> RayActorError:
    """Return the error by which Tune starts a trial anew on other nodes, and does not count that as a failure."""
    return RayActorError(error_msg=error.message, preempted=True)
