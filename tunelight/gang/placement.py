"""The order of ranks: those of a node follow one another, and the head's node comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import ray
from ray.util.placement_group import PlacementGroup

from tunelight.compat.ray import session_folder
from tunelight.gang.gpus import in_order, seen_by, visible_gpus
from tunelight.gang.meeting.rendezvous import LOOPBACK
from tunelight.messages import Place


@dataclass(frozen=True, slots=True)
class Location:
    """Where a worker runs."""

    node_id: str
    address: str
    pid: int
    hostname: str
    gpus: tuple[str, ...] = ()
    """The GPUs that Ray gave it: numbers in PCI order, or UUIDs."""
    seen: tuple[str, ...] = ()
    """The GPUs that CUDA shows its process, in CUDA's order; fixed at its first meeting, empty before."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Installed versions of what has to be the same on all ranks."""


class Assigned(NamedTuple):
    """What Ray knows of a worker: its node, its GPUs, how much of them it has, and the session's folder there."""

    node_id: str
    address: str
    gpus: tuple[str, ...]
    share: float
    folder: str

    @classmethod
    def here(cls) -> Assigned:
        """Return this worker's."""
        context = ray.get_runtime_context()
        gpus = in_order(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
        share = float(context.get_assigned_resources().get("GPU", 0))
        return cls(context.get_node_id(), ray.util.get_node_ip_address(), gpus, share, str(session_folder()))


def arrange(
    locations: Sequence[Location], head_node: str | None = None, *, roams: bool = False
) -> list[tuple[int, Place]]:
    """Return (index of the worker, its place) in rank order.

    The gang meets on the loopback interface if all its workers share one node and it does not ``roam`` (see
    :attr:`tunelight.gang.spec.GangSpec.roams`), else at the nodes' addresses. A process that has met before keeps the
    list of GPUs that it saw then, and the index of its own GPU counts in that list. Ranks of a node are in the order of
    their GPUs, so that in a new gang with a GPU for each rank the local rank is the GPU's index, as libraries expect.
    """
    by_node: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        by_node.setdefault(location.node_id, []).append(index)
    nodes = list(by_node)
    if head_node in by_node:
        nodes.sort(key=lambda node: node != head_node)
    alone = len(nodes) == 1 and not roams
    placed: list[tuple[int, Place]] = []
    for node_rank, node in enumerate(nodes):
        here = by_node[node]
        gpus = visible_gpus([locations[index].gpus for index in here])
        here.sort(key=lambda index: gpus.index(locations[index].gpus[0]) if locations[index].gpus else 0)
        for local_rank, index in enumerate(here):
            location = locations[index]
            seen = location.seen or seen_by(location.gpus, gpus)
            place = Place(
                rank=len(placed),
                world_size=len(locations),
                local_rank=local_rank,
                local_world_size=len(here),
                node_rank=node_rank,
                interface=LOOPBACK if alone else location.address,
                gpus=seen,
                gpu=seen.index(location.gpus[0]) if location.gpus else None,
                nodes=len(nodes),
            )
            placed.append((index, place))
    return placed


def layout(places: Sequence[Place]) -> tuple[int, ...]:
    """Return how many ranks each node has, in node order."""
    nodes = [place.node_rank for place in places]
    return tuple(nodes.count(node) for node in dict.fromkeys(nodes))


def current_group() -> PlacementGroup | None:
    """Return the placement group of the trial in this process, or None outside of trials."""
    return ray.util.get_current_placement_group() if ray.is_initialized() else None


def assigned() -> dict[str, float]:
    """Return the resources that Ray has assigned to this worker process; none where this process is no worker."""
    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return {}
    return dict(ray.get_runtime_context().get_assigned_resources())
