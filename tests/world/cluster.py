"""A simulated cluster: nodes with slots, on which gangs are placed all or nothing, with real fragmentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sortedcontainers import SortedList

from tunelight.errors import ResourceError, SettingsError


class Bundle(NamedTuple):
    """Reserved slots of one node; ``life`` counts the node's repairs."""

    node: int
    slots: int
    life: int


class Cluster:
    """``nodes`` equal nodes of ``slots`` slots each, all free. A worker takes one slot.

    Nodes are kept in order of their free slots, so that a placement costs O(log nodes) for each node that it uses.
    Raises: SettingsError.
    """

    def __init__(self, nodes: int, slots: int) -> None:
        for name, count in (("nodes", nodes), ("slots", slots)):
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise SettingsError(f"A cluster's {name} must be a whole number of 1 or more, not {count!r}.")
        self.nodes = nodes
        self.slots = slots
        self.free = nodes * slots
        self.freed = False
        """Set when slots become free; reset by the code that places waiting gangs."""
        self._free_of = [slots] * nodes
        self._life = [0] * nodes
        self._up = [True] * nodes
        self._order = SortedList((slots, node) for node in range(nodes))

    @classmethod
    def of(cls, given: str | tuple[int, int] | Cluster) -> Cluster:
        """Return a cluster of "16x8" (nodes x slots) or (16, 8); a new one, all free. Raises: SettingsError."""
        if isinstance(given, Cluster):
            return cls(given.nodes, given.slots)
        if isinstance(given, str) and (match := re.fullmatch(r"\s*(\d+)\s*[x×*]\s*(\d+)\s*", given)):  # noqa: RUF001
            return cls(int(match[1]), int(match[2]))
        if isinstance(given, tuple | list) and len(given) == 2:
            return cls(*given)
        raise SettingsError(f"cluster must be nodes x slots a node, '16x8' or (16, 8) for example, not {given!r}.")

    @property
    def size(self) -> int:
        """The number of all slots, including those of nodes that are down."""
        return self.nodes * self.slots

    def check_fits(self, demands: Sequence[int], strategy: str, what: str) -> None:
        """Raise ResourceError unless the cluster, when empty, holds the gang."""
        if Cluster(self.nodes, self.slots).take(demands, strategy) is None:
            raise ResourceError(
                f"{what} needs {sum(demands)} slots ({strategy}), and a cluster of {self.nodes} x {self.slots} = "
                f"{self.size} can never hold it so. Ask for fewer workers, or for a larger cluster."
            )

    def take(self, demands: Sequence[int], strategy: str = "PACK") -> list[Bundle] | None:
        """Reserve a bundle for each of ``demands`` (in slots), or none and return None.

        PACK: on one node if possible (the fullest with room), else on few; STRICT_PACK: on one node only; SPREAD: on
        different nodes as far as possible; STRICT_SPREAD: on different nodes only.
        """
        total = sum(demands)
        if total > self.free:
            return None
        if strategy in ("PACK", "STRICT_PACK"):
            index = self._order.bisect_left((total, -1))
            if index < len(self._order):
                node = self._order[index][1]
                return [self._occupy(node, demand) for demand in demands]
            if strategy == "STRICT_PACK":
                return None
        return self._take_many(demands, strategy)

    def _take_many(self, demands: Sequence[int], strategy: str) -> list[Bundle] | None:
        spread, strict = "SPREAD" in strategy, strategy.startswith("STRICT")
        bundles: dict[int, Bundle] = {}
        used: list[int] = []
        for index in sorted(range(len(demands)), key=lambda index: -demands[index]):
            demand = demands[index]
            node = None if spread else next((n for n in used if self._free_of[n] >= demand), None)
            if node is None:
                node = self._most_free(demand, used)
            if node is None and not strict:
                node = next((n for n in used if self._free_of[n] >= demand), None)
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
            while len(bundles) < count and self._up[node] and self._free_of[node]:
                bundles.append(self._occupy(node, 1))
        more = self.take([1] * (count - len(bundles))) if len(bundles) < count else []
        if more is None:
            self.give(bundles)
            return None
        return bundles + more

    def give(self, bundles: Iterable[Bundle]) -> None:
        """Release bundles; those of a node that has failed since are ignored."""
        for bundle in bundles:
            if self._up[bundle.node] and self._life[bundle.node] == bundle.life:
                self._set_free(bundle.node, self._free_of[bundle.node] + bundle.slots)
                self.freed = True

    def fail(self, node: int) -> None:
        """Take a node down, with all bundles on it."""
        self._set_free(node, 0)
        self._order.remove((0, node))
        self._up[node] = False

    def repair(self, node: int) -> None:
        """Bring a node back, empty."""
        self._up[node] = True
        self._life[node] += 1
        self._order.add((0, node))
        self._set_free(node, self.slots)
        self.freed = True

    def is_up(self, node: int) -> bool:
        """Tell whether a node is up."""
        return self._up[node]

    def _occupy(self, node: int, slots: int) -> Bundle:
        self._set_free(node, self._free_of[node] - slots)
        return Bundle(node, slots, self._life[node])

    def _set_free(self, node: int, free: int) -> None:
        if not 0 <= free <= self.slots:
            raise RuntimeError(f"node {node} of {self.slots} slots would have {free} free: a slot was used twice")
        self._order.remove((self._free_of[node], node))
        self._order.add((free, node))
        self.free += free - self._free_of[node]
        self._free_of[node] = free
