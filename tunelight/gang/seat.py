"""A seat of a gang: a bundle for one worker, and the worker on it, if there is one."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunelight.compat.ray import is_dead, task_on
from tunelight.gang.placement import Location
from tunelight.gang.spec import GangSpec
from tunelight.gang.worker import CONCURRENCY, GangWorker
from tunelight.session.task import Start, Task

_LONGEST_PAUSE_S = 30.0
_LEAVE_S = 0.5
"""How long a worker's process may take to end once Ray has ended it."""
_FREE_S = 5.0
"""How long the processes that were ended may take to be gone, with all that they held on GPUs."""
_LOOK_S = 0.01
_PREFIX = "tunelight-seat-"
"""Prefix of the names of the gang's own placement groups; the id of the actor that owns them follows."""
_DRIVER = "driver"
"""Stands for that id where the owner is no actor."""


@dataclass(eq=False)
class Seat:
    """One worker's seat. Runs on: trial.

    ``group`` and ``bundle`` are of the trial's reservation. A seat ``of_its_own`` is reserved by the gang, alone or
    together with others (see ``reserve_seats``), until it is released.
    """

    spec: GangSpec
    group: PlacementGroup | None = None
    bundle: int = 0
    of_its_own: bool = False
    worker: Any = None
    location: Location | None = None
    """Where the worker runs; None until it has arrived, with all its imports done."""
    lost: str | None = None
    """Why the last worker of this seat was lost."""
    ended: Location | None = None
    """Where the last worker with a GPU ran whose process was ended here, until ``await_ends`` has seen it gone."""
    _arriving: Any = None
    tries: int = 0
    """How many workers were started here since the last one arrived."""
    _not_before: float = 0.0
    starts: int = 0
    """How many trials its worker has started; from the second on it is warm."""
    _task: Task | None = None
    """The task that its worker was sent last."""

    def occupy(self) -> None:
        """Start a worker here, unless there is one. It does not wait; after lost workers there is a pause first."""
        if self.worker is not None or time.monotonic() < self._not_before:
            return
        if self.of_its_own and self.group is None:
            reserve_seats([self])
        spec, each = self.spec, self.spec.reservation
        options: dict[str, Any] = {
            "num_cpus": each.cpus_per_worker,
            "num_gpus": each.gpus_per_worker,
            "resources": dict(each.resources_per_worker) or None,
            "max_concurrency": CONCURRENCY,
            "max_restarts": 0,
            "runtime_env": spec.runtime_env,
        }
        if self.group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=self.bundle
            )
        self.worker = ray.remote(spec.actor or GangWorker).options(**options).remote(spec.home, spec.environ)
        self._arriving = self.worker.arrive.remote(spec.init_hook)
        self._not_before = time.monotonic() + min(2.0**self.tries, _LONGEST_PAUSE_S)
        self.tries += 1

    def start(self, task: Task, start: Start) -> None:
        """Start a trial on the worker, which is sent the task unless it has it. A dead worker shows in its poll."""
        self.starts += 1
        self.worker.start.remote(start, None if task is self._task else task)
        self._task = task

    def renew(self) -> None:
        """Let the worker have a new process, or start another worker; ``look`` tells when it has arrived."""
        if self.location is None:
            return
        if not hasattr(self.spec.actor, "renew"):
            self.vacate("renewed", healthy=True)
            self.occupy()
            return
        self.location, self._task, self.starts = None, None, 0
        self._arriving = self.worker.renew.remote()

    def look(self, timeout_s: float = 0.0) -> bool:
        """Tell whether a worker has arrived. Raises: RayError when it cannot: its constructor or hook failed."""
        if self._arriving is not None and ray.wait([self._arriving], timeout=timeout_s)[0]:
            try:
                self.location = ray.get(self._arriving)
                self._arriving, self.tries, self.lost = None, 0, None
            except RayActorError as error:
                self.vacate(str(error).strip())
                if error.actor_init_failed:
                    raise
            except RayError as error:
                self.vacate(str(error).strip())
                raise
        return self.location is not None

    def dismiss(self) -> None:
        """Ask Ray to end the worker, without waiting. ``vacate`` makes sure that it ends."""
        if self.worker is not None:
            with contextlib.suppress(Exception):  # the worker or Ray may be gone
                ray.kill(self.worker)

    def vacate(self, why: str, *, healthy: bool = False) -> None:
        """End the worker, which frees what it holds. The seat stays reserved.

        A ``healthy`` worker on another node is left to Ray: a task there that makes sure would outlive its owner.
        """
        if self.worker is not None:
            self.dismiss()
            with contextlib.suppress(Exception):
                if self.location is not None:
                    self.ended = self.location if self.location.gpus else None
                    _end_process(self.location, only_here=healthy)
            self.lost = why
        self.worker = self.location = self._arriving = self._task = None
        self.starts = 0

    def release(self) -> None:
        """End the worker; release the reservation of a seat of its own, also for the seats that share it."""
        self.vacate("released", healthy=True)
        if self.of_its_own and self.group is not None:
            with contextlib.suppress(Exception):  # Ray may be gone
                remove_placement_group(self.group)
            self.group = None


def reserve_seats(seats: Sequence[Seat]) -> None:
    """Reserve bundles for seats of their own: all or nothing, on one node if possible. It does not wait."""
    bundle, owner = seats[0].spec.reservation.worker, ray.get_runtime_context().get_actor_id() or _DRIVER
    group = placement_group([bundle] * len(seats), "PACK", name=f"{_PREFIX}{owner}-{secrets.token_hex(4)}")
    for index, seat in enumerate(seats):
        seat.group, seat.bundle = group, index


def sweep_seats() -> None:
    """Release what dead heads had reserved for seats of their own, which Ray keeps until the job ends."""
    for group in placement_group_table().values():
        name = str(group["name"])
        if not name.startswith(_PREFIX) or group["state"] == "REMOVED":
            continue
        if (owner := name.split("-")[2]) != _DRIVER and is_dead(owner):
            with contextlib.suppress(ValueError):  # released by another head
                remove_placement_group(get_placement_group(name))


def await_ends(seats: Sequence[Seat]) -> None:
    """Wait, for some seconds, until the processes that were ended on these seats' GPUs are gone.

    A process that is killed frees its GPU's memory in up to a second or two, and the next trial may need all of it.
    """
    by_node: dict[str, list[int]] = {}
    for seat in seats:
        if seat.ended is not None:
            by_node.setdefault(seat.ended.node_id, []).append(seat.ended.pid)
            seat.ended = None
    if not by_node:
        return
    here = by_node.pop(ray.get_runtime_context().get_node_id(), [])
    elsewhere = [task_on(node, _all_gone).remote(pids) for node, pids in by_node.items()]
    _all_gone(here)
    if elsewhere:
        ray.wait(elsewhere, num_returns=len(elsewhere), timeout=2 * _FREE_S)  # of a node that is lost nothing is left


def _end_process(location: Location, *, only_here: bool) -> None:
    """Make sure that a worker's process ends: a stopped process does not react to Ray's request."""
    here = location.node_id == ray.get_runtime_context().get_node_id()
    if here:
        _kill(location.pid)
    if here or only_here:
        return
    task_on(location.node_id, _kill).remote(location.pid)


def _kill(pid: int) -> None:
    """Kill a worker's process on this node, unless it ends by itself.

    If it is killed by a signal, Ray tells the driver that it died of an unexpected error.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if "GangWorker" not in " ".join(process.cmdline()):  # the number may be another process's by now
            return
        try:
            process.wait(_LEAVE_S)
        except psutil.TimeoutExpired:
            process.kill()


def _all_gone(pids: Sequence[int]) -> None:
    """Wait until these workers' processes on this node are gone, or ``_FREE_S`` seconds."""
    deadline = time.monotonic() + _FREE_S
    while any(map(_remains, pids)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _remains(pid: int) -> bool:
    """Tell whether something of a worker's process remains: its other threads may end later than its first one.

    An ending process has no command line any more. Once its last thread has ended it holds nothing, though its parent
    may not have asked for its exit status.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return process.num_threads() > 1
        command = " ".join(process.cmdline())
        return not command or "GangWorker" in command  # the number may be another process's by now
    except psutil.Error:
        return False
