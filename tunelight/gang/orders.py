"""Why a trial has to leave its workers: Ray drains one of its nodes, or its driver has told it to."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import cloudpickle

from tunelight.compat.ray import announce, announced, draining_nodes
from tunelight.gang.gang import Gang
from tunelight.messages import Stop

DRAINED: Final = "NodeDrained"
"""The type of the error by which a trial leaves its nodes."""
NODES_S: Final = 2.0
"""How often Ray is asked for drain notices: a preemptible node has at least half a minute from its notice on."""


@dataclass(frozen=True, slots=True)
class Started:
    """A start of a trial on a gang: where it is, and how its head is reached while that waits for its ranks.

    ``number``: the report behind which it trains; ``nodes``: the hosts of the head and the workers, by the ids of
    their nodes; ``worker``: rank 0's, which passes on to the head what the driver sends for start ``serial``.
    """

    trial: str
    number: int
    nodes: Mapping[str, str]
    serial: int
    worker: Any


def announce_start(sweep: str, trial: str, number: int, gang: Gang) -> None:
    """Let the driver of a sweep know that a trial trains on a gang. Runs on: trial."""
    started = Started(trial, number, _nodes(gang), gang.trials, gang.workers[0])
    announce(f"{sweep}/{gang.name}/{gang.trials}", cloudpickle.dumps(started))


class Orders:
    """What cannot wait for the end of a step: a stop, and to leave. Runs on: driver.

    A head that waits for its ranks takes no calls, but it gets all events of rank 0, whose worker passes on what it is
    told. So no head has to ask.

    Args:
        sweep: the name under which its heads announce starts.
        heard: returns what they have announced since the last call, by ``gang/serial``.
        drains: returns the nodes that Ray drains.
        clock: seconds.
    """

    def __init__(
        self,
        sweep: str,
        heard: Callable[[str], Mapping[str, bytes]] = announced,
        drains: Callable[[], Collection[str]] = draining_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sweep, self._heard, self._drains, self._clock = sweep, heard, drains, clock
        self._gangs: dict[str, Started] = {}
        """What each gang has started last; also of gangs that are gone, until their trials have ended."""
        self._stops: dict[str, Stop] = {}
        self._news: list[tuple[str, int]] = []
        self._looked = -NODES_S

    def starts(self) -> list[tuple[str, int]]:
        """Return the trials that were started since the last call, and the report behind which each trains."""
        self._hear()
        news, self._news = self._news, []
        return news

    def stop(self, trial: str, stop: Stop) -> None:
        """Have a trial stop or leave, also if it is started again; before its next report, where that is far."""
        self._hear()
        self._stops[trial] = stop
        for started in self._gangs.values():
            if started.trial == trial:
                _send(started, stop)

    def look(self, living: Callable[[], Collection[str]]) -> None:
        """Reach trials that were started again; and every two seconds those whose nodes Ray drains, which leave.

        ``living``: returns the trials that have not ended.
        """
        due = self._clock() - self._looked >= NODES_S
        if not due and not self._stops:
            return
        alive = living()
        self._stops = {trial: stop for trial, stop in self._stops.items() if trial in alive}
        self._hear()
        if due:
            self._looked = self._clock()
            self._gangs = {name: started for name, started in self._gangs.items() if started.trial in alive}
            with contextlib.suppress(Exception):  # a cluster that does not answer is noticed elsewhere
                drains = self._drains()
                for started in self._gangs.values():
                    if (stop := drained(started.nodes, drains)) is not None:
                        _send(started, stop)

    def _hear(self) -> None:
        with contextlib.suppress(Exception):  # as above
            for name, data in self._heard(self._sweep).items():
                started: Started = cloudpickle.loads(data)  # of a head of this job
                self._news.append((started.trial, started.number))
                gang, _, _ = name.partition("/")
                if gang not in self._gangs or self._gangs[gang].serial < started.serial:
                    self._gangs[gang] = started
                if started.trial in self._stops:
                    _send(started, self._stops[started.trial])


def _send(started: Started, stop: Stop) -> None:
    with contextlib.suppress(Exception):  # a worker that is gone: its successor will be announced
        started.worker.tell.remote(started.serial, stop)


def drained(nodes: Mapping[str, str], drains: Collection[str]) -> Stop | None:
    """Return the order to leave, where one of ``nodes`` (hosts by their ids) is drained; else None."""
    found = [f"{host}#{node[:6]}" for node, host in nodes.items() if node in drains]
    return Stop(f"Ray drains {', '.join(found)}", save=True) if found else None


def _nodes(gang: Gang, *, with_head: bool = True) -> dict[str, str]:
    hosts = {ray.get_runtime_context().get_node_id(): os.uname().nodename} if with_head else {}
    return hosts | {location.node_id: location.hostname for location in gang.locations}


def make_leave_check(
    gang: Gang,
    *,
    with_head: bool = True,
    drains: Callable[[], Collection[str]] = draining_nodes,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], Stop | None] | None:
    """Return a function that returns the order to leave, where a node of the gang (or its head) is drained; else None.

    It asks Ray every two seconds, for heads whose driver does not. Returns None where Ray is not connected.
    """
    if not ray.is_initialized():
        return None
    asked, known = -NODES_S, frozenset[str]()

    def check() -> Stop | None:
        nonlocal asked, known
        if clock() - asked >= NODES_S:
            asked = clock()
            try:
                known = frozenset(drains())
            except Exception:  # noqa: BLE001 - a cluster that does not answer is noticed elsewhere
                known = frozenset()
        return drained(_nodes(gang, with_head=with_head), known)

    return check
