"""A simulated cluster: nodes with slots, on which gangs are placed all or nothing, with real fragmentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sortedcontainers import SortedList


class Bundle(NamedTuple):
    """Reserved slots of one node."""

    node: int
    slots: int


class Cluster:
    """``nodes`` equal nodes of ``slots`` slots each, all free. A worker takes one slot.

    Nodes are kept in order of their free slots, so that a placement costs O(log nodes) for each node that it uses.
    """

    def __init__(self, nodes: int, slots: int) -> None:
        self.nodes = nodes
        self.slots = slots
        self.free = nodes * slots
        self.freed = False
        """Set when slots become free; reset by the code that places waiting gangs."""
        self._free_of = [slots] * nodes
        self._order = SortedList((slots, node) for node in range(nodes))

    @property
    def size(self) -> int:
        """The number of all slots."""
        return self.nodes * self.slots

    def take(self, demands: Sequence[int]) -> list[Bundle] | None:
        """Reserve a bundle for each of ``demands`` (in slots), or none and return None.

        On one node if possible (the fullest with room), else on few.
        """
        total = sum(demands)
        if total > self.free:
            return None
        index = self._order.bisect_left((total, -1))
        if index < len(self._order):
            node = self._order[index][1]
            return [self._occupy(node, demand) for demand in demands]
        bundles: dict[int, Bundle] = {}
        used: list[int] = []
        for index in sorted(range(len(demands)), key=lambda index: -demands[index]):
            demand = demands[index]
            node = next((n for n in used if self._free_of[n] >= demand), None)
            if node is None:
                node = self._most_free(demand, used)
            if node is None:
                self.give(bundles.values())
                return None
            bundles[index] = self._occupy(node, demand)
            used.append(node)
        return [bundles[index] for index in range(len(demands))]

    def _most_free(self, demand: int, without: Sequence[int]) -> int | None:
        for free, node in reversed(self._order):
            if free < demand:
                return None
            if node not in without:
                return int(node)
        return None

    def grow(self, count: int, near: Iterable[int]) -> list[Bundle] | None:
        """Reserve ``count`` single slots, all or none, on the nodes ``near`` first."""
        if count > self.free:
            return None
        bundles: list[Bundle] = []
        for node in dict.fromkeys(near):
            while len(bundles) < count and self._free_of[node]:
                bundles.append(self._occupy(node, 1))
        more = self.take([1] * (count - len(bundles))) if len(bundles) < count else []
        if more is None:
            self.give(bundles)
            return None
        return bundles + more

    def give(self, bundles: Iterable[Bundle]) -> None:
        """Release bundles."""
        for bundle in bundles:
            self._set_free(bundle.node, self._free_of[bundle.node] + bundle.slots)
            self.freed = True

    def _occupy(self, node: int, slots: int) -> Bundle:
        self._set_free(node, self._free_of[node] - slots)
        return Bundle(node, slots)

    def _set_free(self, node: int, free: int) -> None:
        if not 0 <= free <= self.slots:
            raise RuntimeError(f"node {node} of {self.slots} slots would have {free} free: a slot was used twice")
        self._order.remove((self._free_of[node], node))
        self._order.add((free, node))
        self.free += free - self._free_of[node]
        self._free_of[node] = free
