"""Why a trial has to leave its workers: Ray drains one of its nodes, or its driver has told it to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import ray
from ray.exceptions import RayActorError

from tunelight.compat.ray import draining_nodes, keep_for_job, kept_for_job
from tunelight.gang.gang import Gang
from tunelight.messages import WorkerError

DRAINED: Final = "NodeDrained"
"""The type of the error by which a trial leaves its nodes."""
LOOK_S: Final = 1.0
"""How often a head asks whether its driver has told it to leave: an evicted driver may have ten seconds."""
NODES_S: Final = 2.0
"""How often it asks for drain notices: a preemptible node has at least half a minute from its notice on."""
_ENDS: Final = "!"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a trial has to leave its workers."""

    text: str
    ends: bool = False
    """True where everything ends: training that writes no checkpoint has nothing to gain by going on."""


def order_to_leave(trial: str, reason: Reason | None) -> None:
    """Tell a trial to leave its workers with a checkpoint; None: not, any more. Runs on: driver.

    ``trial``: the name of its Trainable, which no other run of a sweep has, and its id. Its head asks once a second.
    """
    keep_for_job(f"leave/{trial}", "" if reason is None else (_ENDS if reason.ends else " ") + reason.text)


def ordered_to_leave(trial: str) -> Reason | None:
    """Return why the driver has told a trial to leave, if it has. Runs on: trial."""
    said = kept_for_job(f"leave/{trial}")
    return Reason(said[1:], ends=said[0] == _ENDS) if said else None


class DrainWatch:
    """Tells whether a trial has to leave its nodes; it asks now and then. Runs on: trial.

    ``ordered`` returns why the driver has told it to, if it has.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, int]] = draining_nodes,
        clock: Callable[[], float] = time.monotonic,
        ordered: Callable[[], Reason | None] = lambda: None,
    ) -> None:
        self._look, self._clock, self._ordered = look, clock, ordered
        self._next = self._next_nodes = 0.0
        self._drained: Mapping[str, int] = {}
        self.order: Reason | None = None
        """The driver's."""

    def drained(self, nodes: Iterable[str]) -> list[str]:
        """Return those of ``nodes`` that are known to be drained."""
        now = self._clock()
        if now >= self._next:
            self._next = now + LOOK_S
            try:
                self.order = self._ordered()
                if now >= self._next_nodes:
                    self._next_nodes = now + NODES_S
                    self._drained = self._look()
            except Exception:  # noqa: BLE001 - a cluster that does not answer is noticed elsewhere
                return []
        return [node for node in dict.fromkeys(nodes) if node in self._drained]


def reason_to_leave(
    gang: Gang, *, with_head: bool = True, ordered: Callable[[], Reason | None] = lambda: None
) -> Callable[[], Reason | None] | None:
    """Return a function that returns why a gang (and its head) has to leave its nodes, or None if it need not.

    ``ordered`` returns why its driver has told it to, if it has. Returns None where Ray is not connected.
    """
    if not ray.is_initialized():
        return None
    watch, mine = DrainWatch(ordered=ordered), ray.get_runtime_context().get_node_id()

    def why() -> Reason | None:
        hosts = {mine: os.uname().nodename} if with_head else {}
        hosts |= {location.node_id: location.hostname for location in gang.locations}
        drained = watch.drained(hosts)
        if watch.order is not None or not drained:
            return watch.order
        return Reason(f"Ray drains {', '.join(f'{hosts[node]}#{node[:6]}' for node in drained)}")

    return why


def moved_away(error: WorkerError) -> RayActorError:
    """Return the error on which Tune restarts a trial on other nodes without counting a failure."""
    return RayActorError(error_msg=error.message, preempted=True)
