"""Gangs that this process keeps warm between jobs.

A gang belongs to the caller that took it until it is given back. Then it idles until a job needs a gang like it, its
time is over, another gang needs its resources, or a file of code has changed that its workers may have imported. Runs
on: driver, or the process of a function trainable.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from tunelight.errors import GangError, ResourceError
from tunelight.gang.gang import Gang
from tunelight.gang.spec import GangSpec
from tunelight.policies import FailurePolicy
from tunelight.resources import Reservation
from tunelight.session.task import Home

ROOM_LIMIT_S = 600.0
"""How long a reservation may wait for resources of the cluster that others hold."""
_PATIENCE_S = 1.0
"""How long it waits before idle gangs of this process are closed to make room."""
_ALIVE_LIMIT_S = 10.0
_INSTALLED = (f"{os.path.dirname(os.__file__)}{os.sep}", "site-packages", "dist-packages")  # noqa: PTH120 - a prefix
"""Parts of the paths of modules that no one edits: Python's own, and those of installed packages."""
Sources = Mapping[str, tuple[int, int]]
"""Files of code, and when each was changed (in nanoseconds) and its size."""


@dataclass(eq=False)
class Held:
    """A gang, and the placement group that was reserved for it (``owned`` is None on a trial's own group)."""

    gang: Gang
    owned: PlacementGroup | None
    trial_group: PlacementGroup | None
    timer: threading.Timer | None = None
    """Closes it once it has idled long enough."""
    lease: int = 0
    """How often it was taken; its last taker knows this number."""
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The code that its workers may have imported, as it was then."""

    def learn(self, sources: Sources) -> None:
        """Remember code as its workers have it, or will import it; what they have already stays as it was."""
        self.sources = {**sources, **self.sources}

    def outdated(self, sources: Sources) -> list[str]:
        """Return the files of code that have changed since its workers may have imported them."""
        return sorted(path for path, stamp in sources.items() if self.sources.get(path, stamp) != stamp)

    @property
    def closed(self) -> bool:
        """True once its workers are ended."""
        return self.gang.closed

    def close(self) -> None:
        """End the workers and release the reservation. It may be called more than once."""
        if self.timer is not None:
            self.timer.cancel()
        self.gang.close()
        if self.owned is not None:
            with contextlib.suppress(Exception):  # Ray may be gone, and the reservation with it
                remove_placement_group(self.owned)
            self.owned = None


class Pool:
    """The idle gangs of this process. Thread-safe."""

    def __init__(self) -> None:
        self._idle: list[Held] = []
        self._lock = threading.Lock()

    def take(
        self,
        spec: GangSpec,
        reservation: Reservation,
        trial_group: PlacementGroup | None = None,
        *,
        spread: bool = False,
        say: Callable[[str], object] = print,
        runs_code: bool = True,
    ) -> Held:
        """Return a gang for a job: an idle one, healed, or a new one on a reservation of its own.

        ``trial_group`` is the placement group of the trial in this process, whose bundles the gang then uses.
        ``spread`` puts each bundle on another node. ``runs_code``: the job runs code of the user, so that idle gangs
        with older code are closed. Raises: ResourceError, GangError.
        """
        sources = own_sources() if runs_code else {}
        self._close_outdated(sources, say)
        held = self._reuse(spec, trial_group)
        if held is not None:
            held.learn(sources)
            return held
        owned = None if trial_group is not None else self._reserve(reservation, spread, say)
        try:
            held = Held(Gang.form(spec, owned or trial_group), owned, trial_group, lease=1)
            held.learn(sources)
            return held
        except BaseException:
            if owned is not None:
                remove_placement_group(owned)
            raise

    def _close_outdated(self, sources: Sources, say: Callable[[str], object]) -> None:
        """Close idle gangs whose workers have imported code that has changed since: they would go on with the old."""
        with self._lock:
            outdated = [(held, changed) for held in self._idle if (changed := held.outdated(sources))]
            closed = [held for held, _ in outdated]
            self._idle = [held for held in self._idle if held not in closed]
        for held, changed in outdated:
            say(f"tunelight: new workers are started, for {changed[0]} has changed since the others imported it.")
            held.close()

    def _reuse(self, spec: GangSpec, trial_group: PlacementGroup | None) -> Held | None:
        while (held := self._pop(spec, trial_group)) is not None:
            try:
                held.gang.check_alive(_ALIVE_LIMIT_S)
                held.gang.heal()
            except GangError:
                held.close()
                continue
            return held
        return None

    def _pop(self, spec: GangSpec, trial_group: PlacementGroup | None) -> Held | None:
        with self._lock:
            for held in self._idle:
                same_group = (held.trial_group and held.trial_group.id) == (trial_group and trial_group.id)
                if same_group and _of_workers(held.gang.spec) == _of_workers(spec):
                    self._idle.remove(held)
                    held.lease += 1
                    if held.timer is not None:
                        held.timer.cancel()
                        held.timer = None
                    return held
        return None

    def give_back(self, held: Held, idle_timeout_s: float) -> None:
        """Let a gang idle, and close it after ``idle_timeout_s`` seconds; at once if it is unfit."""
        if held.gang.unfit is not None:
            held.close()
            return
        held.learn(own_sources())  # what the job has imported meanwhile
        timer = threading.Timer(idle_timeout_s, self.end, args=(held, held.lease))
        timer.daemon = True
        with self._lock:
            held.timer = timer
            self._idle.append(held)
        timer.start()

    def end(self, held: Held, lease: int) -> None:
        """Close a gang, unless it was taken again since ``lease``."""
        with self._lock:
            if held.lease != lease:
                return
            if held in self._idle:
                self._idle.remove(held)
        held.close()

    def close(self, held: Held | None = None) -> None:
        """Close ``held``, which the caller has taken, or all idle gangs."""
        with self._lock:
            closing = list(self._idle) if held is None else [held]
            self._idle = [gang for gang in self._idle if gang not in closing]
        for gang in closing:
            gang.close()

    def _reserve(self, reservation: Reservation, spread: bool, say: Callable[[str], object]) -> PlacementGroup:
        group: PlacementGroup = placement_group(reservation.bundles, strategy="STRICT_SPREAD" if spread else "PACK")
        try:
            if group.wait(_PATIENCE_S):
                return group
            self.close()  # idle gangs make room
            deadline = time.monotonic() + ROOM_LIMIT_S
            announced = False
            while (left := deadline - time.monotonic()) > 0:
                if group.wait(min(left, 5.0)):
                    return group
                if not announced:
                    say(f"tunelight: waiting for room for {reservation}; free now: {_free()}.")
                    announced = True
            raise ResourceError(
                f"Waited {ROOM_LIMIT_S:.0f} s for room for {reservation}, in vain; free now: {_free()}. Something "
                "else holds the cluster's resources: end it, or ask for fewer workers."
            )
        except BaseException:
            remove_placement_group(group)
            raise


def own_sources() -> Sources:
    """Return the files of this process's modules that are not installed, which one may edit and reload.

    Not the script's: what it defines is sent with each job.
    """
    sources = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(path, str) and not any(part in path for part in _INSTALLED):
            with contextlib.suppress(OSError):  # of an archive, or deleted since
                status = os.stat(path)  # noqa: PTH116 - thousands of modules
                sources[path] = (status.st_mtime_ns, status.st_size)
    return sources


def _of_workers(spec: GangSpec) -> GangSpec:
    """Return what a spec asks of the workers; folder, import paths and retries belong to each job."""
    limits = FailurePolicy(
        hang_timeout_s=spec.failures.hang_timeout_s,
        reschedule_timeout_s=spec.failures.reschedule_timeout_s,
        on_slow=spec.failures.on_slow,
        slow_by=spec.failures.slow_by,
    )
    return replace(spec, home=Home(), failures=limits)


def _free() -> str:
    free = ray.available_resources()
    return ", ".join(f"{free.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name in free) or "nothing"


pool = Pool()
