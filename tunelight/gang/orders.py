"""Orders: what a driver tells the heads of its trials while these wait for their ranks.

Ray passes no call to an actor that is busy with another one, so that heads ask Ray's key-value store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from tunelight.compat.ray import keep_for_job, kept_for_job


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
        self._give(trial, replace(self._of(trial), leave=reason))

    def stop(self, trial: str) -> None:
        """Tell a trial to end, so that its gang is free before its next report."""
        self._give(trial, replace(self._of(trial), stop=True))

    def _of(self, trial: str) -> Orders:
        return self._orders.get(trial, Orders())

    def _give(self, trial: str, orders: Orders) -> None:
        keep_for_job(f"orders/{trial}", "" if orders == Orders() else json.dumps(asdict(orders)))
        self._orders[trial] = orders


def orders_of(trial: str) -> Orders:
    """Return the driver's orders to a trial. Runs on: trial."""
    said = kept_for_job(f"orders/{trial}")
    if not said:
        return Orders()
    data = json.loads(said)
    return Orders(**data | {"leave": data["leave"] and Reason(**data["leave"])})
