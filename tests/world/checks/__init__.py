"""What must hold after any sweep, whatever happened to it: each public function of the modules here is a check."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from tunelight.extras.attach import RecordFollower
from tunelight.record.state import SweepState, TrialState

_ENDS_S = 20.0
"""How long a driver that has lost its sweep may take to end, once it is awake."""
_IDLE_S = 32.0
"""How long a head may hold a reservation in which no worker runs: after lost ones it pauses up to 30 s."""
_HINDERED = ("cut", "store", "disk", "slow", "SIGTERM")
"""What of the faults may make it take longer."""
_GOES_BACK = ("is in no checkpoint, and lost", "takes what it adopted", "starts anew from a checkpoint")


class Ended:
    """A sweep that has ended. ``lines`` and ``state`` are those of its record."""

    def __init__(self, world: Any) -> None:
        self.world, self.results = world, world.results
        self.folder = world.folder / ("bucket/sweeps" if world.stored else "") / "sweep"
        follower = RecordFollower(self.folder)
        self.lines: list[dict[str, Any]] = follower.look()
        self.state: SweepState = follower.state
        self.trials = follower.state.trials

    @property
    def storage_failed(self) -> bool:
        """Whether a checkpoint may not have been written, because a disk was full or a store did not answer."""
        return bool(self.world.suffered("disk", "store"))

    def did(self, *commands: str) -> list[Any]:
        """Return what was given with such commands that the driver has carried out."""
        return [given for said, given in self.world.done if said in commands]

    def tried(self, *commands: str) -> int:
        """Return how often a person gave such a command, answered or not."""
        return sum(text.endswith(tuple(f"command {one}" for one in commands)) for text in self.world.faults)

    def may_go_back(self, trial: TrialState) -> bool:
        """Tell whether a trial has said that it lost, or takes from an older checkpoint, what it had adopted in memory.

        A branch begins with what its parent has.
        """
        parent = None if trial.branch is None else self.trials.get(trial.branch.parent)
        said = any(words in text for _, text in trial.notes for words in _GOES_BACK)
        return said or (parent is not None and self.may_go_back(parent))

    @property
    def stopped(self) -> bool:
        """Whether a person may have stopped the sweep before its end."""
        return self.tried("stop_sweep") > 0


def now(world: Any) -> Iterator[str]:
    """Yield what does not hold while the sweep runs: a reservation without a worker, a driver that has lost it."""
    used = {actor.group for actor in world.rays.actors.values() if actor.dead is None}
    for group in world.rays.groups:
        holds = group.state == "CREATED" and group.name.startswith("tunelight-seat-") and group.owner.alive
        gang = [actor.process for actor in world.rays.actors.values() if actor.owner is group.owner and actor.process]
        # A head looks at each report, and does nothing between the calls of its driver, which may be stopped.
        holds = holds and group.owner.threads and not any(one.stopped for one in (group.owner, *gang))
        since = group.idle = (group.idle or world.kernel.now) if holds and group not in used else None
        if since is not None and world.kernel.now - since > _IDLE_S and not world.suffered(*_HINDERED, since=since):
            yield f"left: {group._hex} is reserved for {world.kernel.now - since:.0f} s, and no worker runs in it"
    owners = world.owners() if len(world.drivers) > 1 else ()
    for process in world.drivers:
        own = [one.generation for one in owners if one.pid == process.pid]
        lost = process.alive and process.threads and not process.stopped and own and own[-1] < len(owners)
        since = process.locals["lost"] = (process.locals.get("lost") or world.kernel.now) if lost else None
        hindered = since is not None and world.suffered(*_HINDERED, since=since)
        if since is not None and world.kernel.now - since > _ENDS_S and not hindered:
            yield f"owners: {process} has lost the sweep {world.kernel.now - since:.0f} s ago, and goes on"


def wrong(world: Any) -> Iterator[str]:
    """Yield what does not hold, after the name of the check that tells."""
    if world.results is None:
        yield f"ends: no results: {world.error!r}"
        return
    ended = Ended(world)
    for name, check in sorted(_checks()):
        try:
            yield from (f"{name}: {text}" for text in check(ended))
        except ValueError as error:  # of a checkpoint that lacks a part
            yield f"{name}: {error}"


def _checks() -> Iterator[tuple[str, Callable[[Ended], Iterator[str]]]]:
    for one in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{one.name}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
                yield name, value
