"""Checks of a cluster for the doctor. Every question has a time limit; a node that does not answer gets a finding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayError

from tunelight.cluster.connect import attached
from tunelight.cluster.doctor import Finding
from tunelight.cluster.nodes import REACH_LIMIT_S, REDUCE_LIMIT_S, Here, Probe, on_node
from tunelight.compat.lightning import flavour
from tunelight.compat.ray import free_resources
from tunelight.errors import last_line
from tunelight.machine.versions import ADVICE, MUST_AGREE, differences, node_name

VERSIONS: Final = MUST_AGREE
"""The packages whose versions are compared."""
LOOK_LIMIT_S: Final = 60.0
"""How long a node may take to start the probe's process and its imports."""
_CALL_LIMIT_S: Final = 10.0
_SKEW_S: Final = 1.0
"""By how much clocks may differ: more makes logs hard to compare, and a sweep's lock unreliable."""
_REDUCE_MIB: Final = 16


@dataclass(eq=False)
class Node:
    """A node of the cluster, with what it has answered."""

    id: str
    host: str
    address: str
    total: dict[str, float]
    free: dict[str, float]
    here: Here | None = None
    skew_s: float | None = None
    """How far its clock is ahead of this machine's, in seconds."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Why it cannot reach other nodes, by their names."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return node_name(self.host, self.id, self.address)


@dataclass
class Survey:
    """The nodes of a cluster, the findings about them, and the speed of an all-reduce."""

    address: str
    nodes: list[Node]
    findings: list[Finding] = field(default_factory=list)
    all_reduce_s: float | None = None
    """Seconds that one all-reduce of ``all_reduce_mib`` MiB over all nodes took, by gloo."""
    all_reduce_mib: int = _REDUCE_MIB


def survey(address: str | None = None) -> Survey:
    """Check the cluster at ``address`` (None: RAY_ADDRESS, else the cluster on this machine).

    It takes seconds, and no CPUs. Raises: ResourceError where the cluster does not answer.
    """
    with attached(address or "auto") as known:
        free = free_resources()
        found = Survey(known, [])
        for node in ray.nodes():
            if node["Alive"]:
                total, unused = _plain(node["Resources"]), _plain(free.get(node["NodeID"], {}))
                host, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
                found.nodes.append(Node(node["NodeID"], host, address, total, unused))
        probes: dict[str, Any] = {
            node.id: ray.remote(Probe).options(**on_node(node.id), max_restarts=0).remote(node.address)
            for node in found.nodes
        }
        try:
            _Rounds(found, probes).all()
        finally:
            for probe in probes.values():
                ray.kill(probe)
        return found


def _plain(resources: Mapping[str, float]) -> dict[str, float]:
    """Return the resources that users ask for, without those that Ray adds."""
    return {name: amount for name, amount in resources.items() if ":" not in name and "_group_" not in name}


class _Rounds:
    """The questions, one after another; a node that fails to answer is not asked again."""

    def __init__(self, found: Survey, probes: dict[str, Any]) -> None:
        self._found = found
        self._probes = probes
        self._left = list(found.nodes)

    def all(self) -> None:
        """Ask everything."""
        for look in (self._look, self._versions, self._clocks, self._reach, self._all_reduce):
            self._found.findings.extend(look())

    def _ask(self, method: str, limit_s: float, advice: str, **arguments: Any) -> Iterator[tuple[Node, Any]]:
        """Ask all nodes that are left at the same time, each with its element of ``arguments``; note who fails."""
        calls = {}
        for index, node in enumerate(self._left):
            own = {name: values[index] for name, values in arguments.items()}
            calls[node.id] = getattr(self._probes[node.id], method).remote(**own)
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=limit_s)
        for node in list(self._left):
            try:
                yield node, ray.get(calls[node.id], timeout=0)
                continue
            except ray.exceptions.GetTimeoutError:
                why = f"no answer within {limit_s:.0f} s"
            except RayError as error:
                why = last_line(error) or type(error).__name__
            self._left.remove(node)
            self._found.findings.append(Finding(f"{method} on {node.name}", "wrong", why, advice))

    def _look(self) -> Iterator[Finding]:
        advice = f"Look whether tunelight imports there. {ADVICE}"
        for node, here in self._ask("look", LOOK_LIMIT_S, advice):
            node.here = here
            if here.interface is None:
                there = "; ".join(f"{name}: {', '.join(held)}" for name, held in here.interfaces.items() if held)
                said = f"{node.address}, which no interface there has ({there})"
                advice = "Start Ray there with --node-ip-address= an address of its own."
                yield Finding(f"address of {here.host}", "wrong", said, advice)
        yield Finding("nodes", "ok", f"{len(self._left)} of {len(self._found.nodes)} answer")

    def _versions(self) -> Iterator[Finding]:
        versions = {node.name: node.here.versions for node in self._left if node.here is not None}
        conflicts = differences(versions, flavour())
        for sentence in conflicts:
            yield Finding("versions", "wrong", sentence, ADVICE)
        if not conflicts:
            yield Finding("versions", "ok", "the same Python, torch, Ray, Lightning and tunelight everywhere")

    def _clocks(self) -> Iterator[Finding]:
        for node in self._left:
            began = time.time()
            try:
                there = ray.get(self._probes[node.id].clock.remote(), timeout=_CALL_LIMIT_S)
            except RayError as error:
                yield Finding(f"clock of {node.name}", "wrong", type(error).__name__, "Look at Ray's logs there.")
                continue
            now = time.time()
            node.skew_s = there - (began + now) / 2
            if abs(node.skew_s) > _SKEW_S + (now - began) / 2:
                said = f"{abs(node.skew_s):.1f} s {'ahead' if node.skew_s > 0 else 'behind'} of this machine's"
                yield Finding(f"clock of {node.name}", "note", said, "Run an NTP client on every node.")

    def _reach(self) -> Iterator[Finding]:
        ports = dict(self._ask("listen", _CALL_LIMIT_S, "Look at the node's addresses, and its limit of open files."))
        names = {node.name: (node.address, port) for node, port in ports.items()}
        others = [{name: place for name, place in names.items() if name != node.name} for node in self._left]
        advice = "Let the nodes reach one another at every TCP port (security group, firewall, network policy)."
        blocked = 0
        for node, unreachable in self._ask("reach", 2 * REACH_LIMIT_S, advice, others=others):
            node.unreachable = unreachable
            for name, why in unreachable.items():
                blocked += 1
                text = f"{node.name} cannot reach {name} at port {names[name][1]}: {why}"
                yield Finding("reach", "wrong", text, advice)
        if not blocked and len(names) > 1:
            yield Finding("reach", "ok", "every node reaches every other at a port that a gang would meet on")

    def _all_reduce(self) -> Iterator[Finding]:
        if len(self._left) < 2 or any(node.unreachable for node in self._left):
            return
        first, size, mebibytes = self._left[0], len(self._left), _REDUCE_MIB
        try:
            port = ray.get(self._probes[first.id].host.remote(), timeout=_CALL_LIMIT_S + LOOK_LIMIT_S)
        except RayError as error:
            yield Finding("all-reduce", "wrong", f"{first.name} cannot open a store: {error}", "Look at torch there.")
            return
        advice = "Gloo cannot connect all nodes: look at their interfaces and firewalls."
        same = {"host": first.address, "port": port, "size": size, "mebibytes": mebibytes}
        each = {name: [value] * size for name, value in same.items()}
        seconds = dict(self._ask("all_reduce", REDUCE_LIMIT_S, advice, rank=range(size), **each))
        if len(seconds) == size:
            slowest = self._found.all_reduce_s = max(seconds.values())
            speed = f"{slowest * 1000:.0f} ms, {mebibytes / slowest:.0f} MiB/s"
            yield Finding("all-reduce", "ok", f"{mebibytes} MiB over {size} nodes by gloo: {speed}")
