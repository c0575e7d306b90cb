"""Why a trial has to leave its workers: Ray drains one of its nodes, or its driver has told it to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from tunelight.compat.ray import draining_nodes, keep_for_job, kept_for_job
from tunelight.gang.gang import Gang
from tunelight.messages import WorkerError


def name_in_orders(trial: Any) -> str:
    """Return a Tune trial's name in orders: its Trainable's, which no other run of a sweep has, and its id."""
    return f"{trial.trainable_name}/{trial.trial_id}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a trial has to leave its workers."""

    text: str
    ends: bool = False
    """True where everything ends: training that writes no checkpoint has nothing to gain by going on."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the driver has told a trial."""

    leave: Reason | None = None
    """To leave its workers with a checkpoint, and why."""
    stop: bool = False
    """To end, as Tune takes it for ended."""


class OrderBook:
    """All orders of a driver, by the names of trials (:func:`name_in_orders`). Runs on: driver."""

    def __init__(self) -> None:
        self._orders: dict[str, Orders] = {}

    def leave(self, trial: str, reason: Reason | None) -> None:
        """Tell a trial to leave its workers with a checkpoint; None: not, any more."""
        self._give(trial, leave=reason)

    def stop(self, trial: str) -> None:
        """Tell a trial to end, so that its gang is free before its next report."""
        self._give(trial, stop=True)

    def _give(self, trial: str, **order: Any) -> None:
        orders = self._orders[trial] = replace(self._orders.get(trial, Orders()), **order)
        keep_for_job(f"orders/{trial}", "" if orders == Orders() else json.dumps(asdict(orders)))


def orders_of(trial: str) -> Orders:
    """Return the driver's orders to a trial. Runs on: trial."""
    said = kept_for_job(f"orders/{trial}")
    if not said:
        return Orders()
    data = json.loads(said)
    return Orders(**data | {"leave": data["leave"] and Reason(**data["leave"])})


DRAINED: Final = "NodeDrained"
"""The type of the error by which a trial leaves its nodes."""
LOOK_S: Final = 0.1
"""How often a head asks for its driver's orders."""
_PART: Final = 0.0125
"""The part of its time that it waits for them at most: with a thousand heads Ray is slow, and is asked less often."""
_MOST_S: Final = 1.0
"""How often it asks at least: an evicted driver may have ten seconds."""
NODES_S: Final = 2.0
"""How often it asks for drain notices: a preemptible node has at least half a minute from its notice on."""


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
            self._next = now + _MOST_S
            try:
                self.order = self._ordered()
                self._next = now + min(_MOST_S, max(LOOK_S, (self._clock() - now) / _PART))
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
