"""The sweeps that share a Ray cluster, by their priorities: each says what it needs, and leaves the rest to others."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tunelight.compat.ray import AllJobs

_SAY_S: Final = 1.0
"""How often a sweep says what it needs, and hears what others do."""
_SILENT_S: Final = 10.0
"""How long after a sweep has last said anything it counts as gone."""


class Board(Protocol):
    """Values by name, which all drivers of a cluster read and write."""

    def put(self, name: str, value: str) -> None:
        """Set a value."""

    def all(self) -> Mapping[str, str]:
        """Return all values by name."""

    def delete(self, name: str) -> None:
        """Delete a value."""


@dataclass
class Neighbours:
    """What this sweep says to the others of the cluster, and hears from them. Runs on: driver.

    A sweep trains as many trials as fit beside what those of a higher ``priority`` need; of equal ones, none yields.
    That a driver has died is known by its silence, as its values do not change any more: no clock is compared.
    """

    priority: int = 0
    board: Board = field(default_factory=lambda: AllJobs("sweeps"))
    clock: Callable[[], float] = time.monotonic
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    _said: int = 0
    _next: float = -math.inf
    _heard: dict[str, tuple[str, float]] = field(default_factory=dict)
    _left: int | None = None

    def look(self, each: Mapping[str, float], wanted: int, size: Mapping[str, float]) -> int | None:
        """Say what this sweep needs; return how many of its trials fit beside those that come first.

        None where there is no such sweep. ``each``: what a trial reserves; ``wanted``: how many trials it would train;
        ``size``: the cluster's resources, as far as they are known.
        """
        now = self.clock()
        if now < self._next or not size:
            return self._left
        self._next, self._said = now + _SAY_S, self._said + 1
        fitting = _fitting(each, size)
        needs = {name: amount * min(wanted, fitting) for name, amount in each.items()}
        try:
            self.board.put(self.name, json.dumps({"priority": self.priority, "needs": needs, "said": self._said}))
            heard = [self._first(name, text, now) for name, text in self.board.all().items()]
        except Exception:  # noqa: BLE001 - Ray is busy or gone, which is noticed elsewhere, or the other is of another version
            return self._left
        first = [other for other in heard if other is not None]
        left = {name: size[name] - sum(other.get(name, 0.0) for other in first) for name in size}
        self._left = _fitting(each, left) if first else None
        return self._left

    def _first(self, name: str, text: str, now: float) -> dict[str, Any] | None:
        """Return what another sweep needs, if it comes before this one and lives."""
        heard = self._heard.get(name)
        if heard is None or heard[0] != text:
            heard = self._heard[name] = (text, now)
        if name == self.name:
            return None
        if now - heard[1] > _SILENT_S:
            self.board.delete(name)  # it says so again if it only slept
            return None
        said = json.loads(text)
        return dict(said["needs"]) if said["priority"] > self.priority else None

    def close(self) -> None:
        """Need nothing any more."""
        with contextlib.suppress(Exception):  # Ray is gone
            self.board.delete(self.name)


def _fitting(each: Mapping[str, float], size: Mapping[str, float]) -> int:
    """Return how many trials fit, as far as the sizes of their resources are known."""
    counts = [(size[name] + 1e-6) // amount for name, amount in each.items() if amount and name in size]
    return max(0, int(min(counts, default=0)))
