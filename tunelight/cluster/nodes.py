"""Checks of a cluster's nodes, by a probe on each: an actor without CPUs, so that it runs beside trials."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunelight import stores
from tunelight.errors import last_line
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import Rendezvous
from tunelight.machine.network import addresses, interface_name, listening, reach
from tunelight.machine.versions import ADVICE, differences, installed, node_name
from tunelight.messages import Place

REACH_LIMIT_S: Final = 5.0
ANSWER_LIMIT_S: Final = 20.0
"""How long a sweep's first trial waits for what all nodes have installed: a process has to start there."""
_LARGEST: Final = 64
"""How many connections a probe tries at the same time."""


@dataclass(frozen=True)
class Here:
    """A node's answer about itself."""

    host: str
    interface: str | None
    interfaces: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, str | None]
    python: str
    sees: bool | None
    """Whether the file in question is visible there (None: none was)."""


def here(address: str, file: str | None) -> Here:
    """Describe this node. Runs on: every node. Raises: OSError where a store's working folder cannot be made."""
    sees = None if file is None else Path(file).exists()
    if file is not None and (store := stores.store_of(file)):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        sees = store.stat(Path(file)) is not None
    return Here(
        host=os.uname().nodename,
        interface=interface_name(address),
        interfaces=addresses(),
        versions=installed(),
        python=sys.executable,
        sees=sees,
    )


class Probe:
    """Answers questions about one node. Runs on: every node."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._listener: socket.socket | None = None
        self._meeting = Rendezvous()

    def look(self, file: str | None = None) -> Here:
        """Describe this node."""
        return here(self._address, file)

    def clock(self) -> float:
        """Return this node's time, in seconds since the epoch."""
        return time.time()

    def listen(self) -> int:
        """Listen as a gang's first rank does; return the port."""
        self._listener = listening(self._address)
        return int(self._listener.getsockname()[1])

    def reach(self, others: Mapping[str, tuple[str, int]]) -> dict[str, str]:
        """Return which of the other nodes (address and port, by name) cannot be reached from here, and why."""
        with ThreadPoolExecutor(_LARGEST) as threads:
            reasons = threads.map(lambda place: reach(place[0], place[1], REACH_LIMIT_S), others.values())
            return {name: why for name, why in zip(others, reasons, strict=True) if why is not None}

    def host(self) -> int:
        """Open the store of a gang of probes, as its rank 0; return the port."""
        return self._meeting.host(self._address, "gloo", ())[0]

    def all_reduce(self, host: str, port: int, rank: int, size: int, mebibytes: int) -> float:
        """Meet the other probes by gloo; return the seconds that an all-reduce of ``mebibytes`` MiB takes."""
        import torch  # seconds
        import torch.distributed as dist

        self._meeting.join(
            Meeting(host, port, "gloo", timeout_s=REDUCE_LIMIT_S),
            Place(rank, size, local_rank=0, local_world_size=1, node_rank=rank, interface=self._address),
        )
        try:
            data = torch.ones(mebibytes << 18)  # of four bytes each
            dist.all_reduce(data)  # opens the connections
            began = time.perf_counter()
            dist.all_reduce(data)
            return time.perf_counter() - began
        finally:
            self._meeting.close()


REDUCE_LIMIT_S: Final = 60.0


def on_node(node_id: str) -> dict[str, Any]:
    """Return the options of an actor or task that runs on this node only, without resources."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


class NodeCheck:
    """Checks while a sweep starts that all nodes can take part in it. Runs on: driver.

    The nodes are asked when it is made. The first look waits for their answers, so that no trial starts before; those
    that are later than that are read as they come.

    Args:
        file: a file that every node must see (None: there is none).
        lightning: the module of Lightning that the sweep trains with.
    """

    def __init__(self, file: Path | None, lightning: str) -> None:
        self._file, self._lightning = file, lightning
        self._patience_s = ANSWER_LIMIT_S
        mine = ray.get_runtime_context().get_node_id()
        self._asked = {
            ray.remote(here).options(**on_node(node["NodeID"]), max_retries=0).remote(
                node["NodeManagerAddress"], None if file is None else str(file)
            ): node
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] != mine
        }  # fmt: skip
        self._versions: dict[str, Mapping[str, str | None]] = {"this one": installed()} if self._asked else {}

    def trouble(self) -> str | None:
        """Return what is wrong with the nodes that have answered by now, or None."""
        if not self._asked:
            return None
        done, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=self._patience_s)
        self._patience_s = 0.0
        for call in done:
            node = self._asked.pop(call)
            name = node_name(node["NodeManagerHostname"], node["NodeID"], node["NodeManagerAddress"])
            try:
                answer: Here = ray.get(call)
            except ray.exceptions.RayError as error:
                if isinstance(error, ray.exceptions.RayTaskError):
                    return f"The node {name} cannot take part: {last_line(error) or type(error).__name__}. {ADVICE}"
                continue  # the node or its worker is gone, which is no reason to end a sweep
            self._versions[name] = answer.versions
            if answer.sees is False:
                return (
                    f"The node {name} does not see {stores.shown(self._file or Path())}, which this one has just "
                    "written: checkpoints of trials there would lie on its own disk, where nobody finds them. Choose a "
                    "folder that all nodes share by storage= (NFS, say) or an object store, or give checkpoints=None "
                    "to go without any."
                )
        conflicts = differences(self._versions, self._lightning) if done else []
        return f"{' '.join(conflicts)} {ADVICE}" if conflicts else None
