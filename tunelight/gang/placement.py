"""Which rank runs where: ranks of one node are neighbours, the head's own node comes first."""

from __future__ import annotations

from collections.abc import Sequence

from tunelight.gang.rendezvous import LOOPBACK
from tunelight.gang.worker import Location
from tunelight.messages import Place


def arrange(locations: Sequence[Location], head_node: str | None = None) -> list[tuple[int, Place]]:
    """Return (index of the worker, its place) in rank order.

    The gang meets on the loopback interface where all its workers share one node, else on each node's
    own address.
    """
    by_node: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        by_node.setdefault(location.node_id, []).append(index)
    nodes = list(by_node)
    if head_node in by_node:
        nodes.sort(key=lambda node: node != head_node)
    alone = len(nodes) == 1
    placed: list[tuple[int, Place]] = []
    for node_rank, node in enumerate(nodes):
        here = by_node[node]
        gpus = visible_gpus([locations[index].gpus for index in here])
        for local_rank, index in enumerate(here):
            place = Place(
                rank=len(placed),
                world_size=len(locations),
                local_rank=local_rank,
                local_world_size=len(here),
                node_rank=node_rank,
                interface=LOOPBACK if alone else locations[index].address,
                gpus=gpus,
                gpu=gpus.index(locations[index].gpus[0]) if locations[index].gpus else None,
            )
            placed.append((index, place))
    return placed


def visible_gpus(held: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the GPUs of a node's ranks, each once: numbers in PCI order, then names (UUIDs, MIG) in theirs."""
    each = dict.fromkeys(gpu for gpus in held for gpu in gpus)
    return tuple(sorted(each, key=lambda gpu: (not gpu.isdecimal(), int(gpu) if gpu.isdecimal() else 0, gpu)))


def layout(places: Sequence[Place]) -> tuple[int, ...]:
    """Return how many ranks each node has, in node order."""
    nodes = [place.node_rank for place in places]
    return tuple(nodes.count(node) for node in dict.fromkeys(nodes))
