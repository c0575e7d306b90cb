"""Orders: what a driver tells the heads of its trials while these wait for their ranks.

Ray passes no call to an actor that is busy with another one, so that heads ask Ray's key-value store.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tunelight.compat.ray import keep_for_job, kept_for_job
from tunelight.gang.gang import Gang
from tunelight.messages import CheckpointInfo, Save, Saved

_FAILED: Final = "!"
_MOST_TRIES: Final = 3
_log: Final = logging.getLogger(__name__)


def name_in_orders(trial: Any) -> str:
    """Return a Tune trial's name in orders: its Trainable's, which no other run of a sweep has, and its id."""
    return f"{trial.trainable_name}/{trial.trial_id}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a trial has to leave its workers."""

    text: str
    ends: bool = False
    """True where everything ends: training that writes no checkpoint has nothing to gain by going on."""
    gang_stays: bool = False
    """True where another trial of the sweep gets its gang, as it is."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the driver has told a trial."""

    leave: Reason | None = None
    """To leave its workers with a checkpoint, and why."""
    branches: Mapping[str, bool] = field(default_factory=dict)
    """Names of the branches that begin with this one's state. True: that at the end of a training step; False: that at
    a report."""
    stop: bool = False
    """To end, as Tune takes it for ended."""


class OrderBook:
    """All orders of a driver, by the names of trials (:func:`name_in_orders`). Runs on: driver."""

    def __init__(self) -> None:
        self._orders: dict[str, Orders] = {}

    def leave(self, trial: str, reason: Reason | None) -> None:
        """Tell a trial to leave its workers with a checkpoint; None: not, any more."""
        self._give(trial, replace(self._of(trial), leave=reason))

    def branch(self, trial: str, branch: str, *, at_step: bool) -> None:
        """Tell a trial to write a checkpoint for another one to begin with."""
        self._give(trial, replace(self._of(trial), branches={**self._of(trial).branches, branch: at_step}))

    def stop(self, trial: str) -> None:
        """Tell a trial to end, so that its gang is free before its next report."""
        self._give(trial, replace(self._of(trial), stop=True))

    def branched(self, trial: str, branch: str) -> CheckpointInfo | str | None:
        """Return the checkpoint with which a branch begins, or why there is none; None: not known yet."""
        said = kept_for_job(f"branch/{trial}/{branch}")
        if said is None:
            return None
        if said.startswith(_FAILED):
            return said.removeprefix(_FAILED)
        data = json.loads(said)
        return CheckpointInfo(**{**data, "fits": tuple(data["fits"])})

    def forget(self, trial: str, branch: str) -> None:
        """Withdraw an order for a branch."""
        others = {name: at_step for name, at_step in self._of(trial).branches.items() if name != branch}
        self._give(trial, replace(self._of(trial), branches=others))

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


class BranchPoints:
    """The checkpoints that a trial's ranks write for branches of it. Runs on: trial.

    Args:
        orders: returns the driver's orders.
        give: called with a branch and its checkpoint (None: the ranks have written none).
    """

    def __init__(
        self,
        orders: Callable[[], Orders] = Orders,
        give: Callable[[str, CheckpointInfo | None], object] = lambda *_: None,
    ) -> None:
        self._orders, self._give = orders, give
        self._asked: dict[int, str] = {}
        self._given: set[str] = set()
        self._tries: Counter[str] = Counter()

    def begin(self) -> None:
        """Note that the ranks start, who know nothing of what was asked before."""
        self._asked.clear()

    def look(self, gang: Gang) -> None:
        """Ask the ranks for the checkpoints of new orders."""
        for branch, at_step in self._orders().branches.items():
            if branch not in self._given and branch not in self._asked.values():
                self._asked[gang.answer(Save())] = branch
                if at_step:
                    gang.hurry()

    def take(self, event: Saved) -> None:
        """Pass on the checkpoint of an event, if that is a branch's."""
        branch = self._asked.pop(event.answers, None)
        if branch is None:
            return
        self._tries[branch] += 1
        try:
            self._give(branch, event.checkpoint)
        except Exception:  # noqa: BLE001 - a storage or Ray that does not answer now must not cost the trial
            _log.warning("the checkpoint for branch %s could not be kept", branch, exc_info=True)
            if self._tries[branch] < _MOST_TRIES:  # it is asked for again
                return
        self._given.add(branch)


def note_branch(trial: str, branch: str, checkpoint: CheckpointInfo | None) -> None:
    """Tell the driver with which checkpoint a branch begins. Runs on: trial."""
    why = f"{_FAILED}it writes no checkpoint now"
    keep_for_job(f"branch/{trial}/{branch}", why if checkpoint is None else json.dumps(checkpoint.asdict()))
