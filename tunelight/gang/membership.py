"""The members of a gang: its seats, the workers on them, and those that met as its ranks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from itertools import groupby
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup

from tunelight.compat.lightning import VARIABLE as LIGHTNING_VARIABLE
from tunelight.errors import GangError, last_line
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import JOIN_LIMIT_S
from tunelight.gang.placement import Location, arrange, layout
from tunelight.gang.seat import Seat, await_ends, reserve_seats, sweep_seats
from tunelight.gang.spec import START_LIMIT_S, GangSpec
from tunelight.machine.versions import ADVICE, differences, node_name
from tunelight.settings.backends import BACKENDS

_OWN_PACKAGES = {"conda", "container", "image_uri", "pip", "py_modules", "uv"}
"""Fields of a runtime_env that give workers other packages than the driver has."""
_LOOK_S = 0.05
_CALL_LIMIT_S = 30.0
_MOST_TRIES = 6
"""How many workers may die on a seat while they start: half a minute of attempts."""
_LIVE_LIMIT_S = 5.0
_GRACE_S = 1.0
"""How long ranks may take to finish meeting once one of them has failed to."""


class Membership:
    """The workers of a gang. A lost worker is replaced on its seat, and the others stay warm.

    Runs on: trial (the head's process).
    """

    def __init__(self, spec: GangSpec, group: PlacementGroup | None) -> None:
        self.spec = spec
        self.unfit: str | None = None
        """Why ``heal`` has to replace a worker before another trial, if it has to."""
        self.met = False
        """True while all ranks are still those that met, and fit for a trial."""
        self.met_at = 0.0
        self.closed = False
        self.ranks: list[Seat] = []
        self.locations: list[Location] = []
        wanted = spec.reservation.wanted
        first = spec.reservation.first_bundle if spec.first_bundle is None else spec.first_bundle
        self._seats = [Seat(spec, group, first + index // spec.workers_per_bundle) for index in range(spec.workers)]
        self._seats += [Seat(spec, of_its_own=True) for _ in range(spec.workers, wanted)]
        self._size: int | None = None
        if wanted > spec.workers:
            sweep_seats()  # an earlier head may have died

    def close(self) -> None:
        """End the workers, and release the gang's own reservations."""
        self.closed = True  # first: another thread may ask meanwhile, and a release may fail
        for seat in self._seats:
            seat.dismiss()  # in parallel
        for seat in self._seats:
            seat.release()
        self.ranks = []
        self.unfit = self.unfit or "it was closed"

    @property
    def size(self) -> int:
        """How many ranks the gang has now."""
        return len(self.ranks)

    def want(self, size: int | None, *, busy: bool = False) -> None:
        """Keep seats for ``size`` workers from now on (None: for all); release the gang's own seats beyond that.

        While a trial is ``busy`` on the gang, its ranks keep their seats until ``want`` is called again after it.
        """
        self._size = size
        beyond = [seat for seat in self._seats[len(self._wanted()) :] if not (busy and seat in self.ranks)]
        if any(seat in self.ranks and seat.worker is not None for seat in beyond):
            self.met = False
            self._leave()
        kept = [seat.group for seat in self._seats if seat not in beyond]
        for seat in beyond:
            if seat.group in kept:
                seat.vacate("released")
            else:
                seat.release()

    def ready(self) -> int:
        """Return how many workers could join when the gang next meets; start missing ones. It does not wait.

        Only an elastic gang takes workers in later: another one waits for all of them before it meets.
        """
        if not self.spec.elastic or self.closed:
            return 0
        self._reserve()
        for seat in self._wanted():
            with contextlib.suppress(RayError):  # tried again, with growing pauses
                seat.occupy()
                seat.look()
        return sum(seat not in self.ranks for seat in self._arrived())

    def _reserve(self) -> None:
        """Reserve bundles for the gang's own seats that have none.

        A gang that grows by itself reserves them one by one, as there is room. Seats that a scheduler asked for are
        useful together only, so they are one reservation, on one node if possible. It is split where the gang's size
        doubles, because a reservation can only be released as a whole and gangs shrink by powers of two as well.
        """
        missing = [index for index, seat in enumerate(self._wanted()) if seat.of_its_own and seat.group is None]
        doubled = groupby(
            missing,
            lambda index: index if self._size is None else (index // self.spec.workers).bit_length(),
        )
        for _, block in doubled:
            reserve_seats([self._seats[index] for index in block])

    def heal(self, size: int | None = None) -> None:
        """Make the gang fit for a trial: start missing workers, and meet (again) if need be. No trial may be running.

        ``size`` limits the number of ranks (None: no limit). An elastic gang that has met before goes on at once with
        the workers that are there, if they are at least ``least``; another one waits for all of them.
        Raises: GangError when that takes too long. Try again, or close the gang and form another.
        """
        if self.closed:
            raise GangError("The gang cannot be used again: it was closed.")
        self.want(size, busy=False)
        if self.met and self.size == len(self._arrived()[:size]) and not (size is None and self.ready()):
            return
        self.met = False
        for seat in self._seats[: self.spec.workers]:
            seat.occupy()  # workers start while the others leave
        self._leave()
        for seat in self.ranks if self.spec.actor is not None else ():
            with contextlib.suppress(RayError):
                seat.look(0.0 if seat.tries else _CALL_LIMIT_S)  # one that renews itself comes in a moment
        if self.ranks:
            self._gather_round(
                self.spec.reservation.least or self.spec.workers, self.spec.failures.reschedule_timeout_s
            )
        else:
            self._gather_round(self.spec.workers, START_LIMIT_S)
        await_ends(self._seats)
        self._meet(self._arrived()[:size])
        self.unfit = None

    def _wanted(self) -> list[Seat]:
        """Return the seats that should have workers; those of the reservation always, since they cost nothing more."""
        return self._seats[: None if self._size is None else max(self._size, self.spec.workers)]

    def _arrived(self) -> list[Seat]:
        return [seat for seat in self._wanted() if seat.location is not None]

    def _leave(self) -> None:
        """Let all workers leave their meeting, and end those that cannot."""
        calls = {seat.worker.leave.remote(): seat for seat in self._seats if seat.location is not None}
        slow = ray.wait(list(calls), num_returns=len(calls), timeout=_CALL_LIMIT_S)[1] if calls else []
        for call, seat in calls.items():
            if call in slow:
                seat.vacate(f"did not leave within {_CALL_LIMIT_S:.0f} s")
                continue
            try:
                if left := ray.get(call):
                    seat.vacate(f"left {'; '.join(left)}")
            except RayError as error:
                seat.vacate(str(error).strip())

    def _gather_round(self, enough: int, limit_s: float) -> None:
        """Wait until at least ``enough`` workers have arrived. Raises: GangError."""
        deadline = time.monotonic() + limit_s
        first = self._seats[: self.spec.workers]
        while len(self._arrived()) < enough:
            for seat in first:
                seat.occupy()
                try:
                    seat.look(_LOOK_S if seat.location is None else 0.0)
                except RayError as error:
                    what = "A worker failed while the gang waited for it to start"
                    raise GangError(f"{what}: {last_line(error)}\n\n{error}", "exception") from error
                if seat.worker is None and seat.tries >= _MOST_TRIES:
                    raise GangError(f"A worker's process died {seat.tries} times while it started: {seat.lost}")
            if time.monotonic() > deadline:
                arrived = len(self._arrived())
                lost = next((f" The last that was lost: {seat.lost}" for seat in first if seat.lost), "")
                raise GangError(
                    f"Waited {limit_s:.0f} s for workers to start and import: {arrived} of {enough} are there.{lost}"
                )

    def _of_driver(self) -> dict[str, str | None]:
        """Return the driver's versions that the workers' must agree with: of an environment of their own, none."""
        if _OWN_PACKAGES & (self.spec.runtime_env or {}).keys():
            return {}
        return {name: version for name, version in self.spec.versions.items() if version is not None}

    def _meet(self, seats: list[Seat]) -> None:
        """Let the workers of ``seats`` meet; their ranks follow from the nodes that they run on."""
        head = ray.get_runtime_context().get_node_id()
        located = [(seat, seat.location) for seat in seats if seat.location is not None]
        order = arrange([location for _, location in located], head, roams=self.spec.roams)
        self.ranks, self.locations = [], []
        spec = self.spec
        wanted = spec.reservation.wanted
        places = [replace(place, backend=spec.backend, wanted=wanted, elastic=spec.elastic) for _, place in order]
        for index, place in order:
            seat, location = located[index]
            seat.location = replace(location, seen=place.gpus)
            self.ranks.append(seat)
            self.locations.append(seat.location)
        versions = {node_name(loc.hostname, loc.node_id, loc.address): loc.versions for loc in self.locations}
        lightning = self.spec.environ.get(LIGHTNING_VARIABLE, "pytorch_lightning")
        conflicts = differences({"the driver": self._of_driver(), **versions}, lightning)
        if conflicts:
            raise GangError(f"The gang's workers cannot train together. {' '.join(conflicts)} {ADVICE}", "exception")
        interface, nodes = places[0].interface, layout(places)
        collectives = self.spec.collectives_of(self.locations)
        ((port, group_port),) = self._gather(
            [self.workers[0].host.remote(interface, collectives, nodes)],
            _CALL_LIMIT_S,
            f"rank 0 to listen on {interface}",
        )
        meeting = Meeting(interface, port, collectives, nodes, group_port, self.spec.collective_limit_s)
        self._gather(
            [worker.join.remote(meeting, place) for worker, place in zip(self.workers, places, strict=True)],
            JOIN_LIMIT_S,
            "its ranks to meet",
        )
        self.met, self.met_at = True, time.time()

    @property
    def workers(self) -> list[Any]:
        """The actors on the ranks' seats, in rank order; for a lost one its replacement, or None."""
        return [seat.worker for seat in self.ranks]

    @property
    def warm(self) -> bool:
        """True where no rank's worker is new: each had started a trial before this start."""
        return bool(self.ranks) and all(seat.starts > 1 for seat in self.ranks)

    def check_alive(self, limit_s: float) -> None:
        """Check that every worker answers. Raises: GangError."""
        self._gather([worker.locate.remote() for worker in self.workers], limit_s, "a sign of life")

    def _all_live(self) -> bool:
        """Tell whether every rank answers: if not, another rank's error may only be a consequence."""
        return _succeeded([worker.locate.remote() for worker in self.workers], _LIVE_LIMIT_S)

    def lose(self, rank: int, reason: str) -> None:
        """End a rank's worker and start another, which joins when the gang is next healed."""
        self.met = False
        self.unfit = self.unfit or reason
        self.ranks[rank].vacate(reason)
        self.ranks[rank].occupy()

    def _gather(self, calls: list[Any], limit_s: float, what: str) -> list[Any]:
        """Return the results of calls to the ranks. Raises: GangError once one fails; unfinished ranks are ended."""
        deadline = time.monotonic() + limit_s
        left = list(calls)
        try:
            while left:
                done, left = ray.wait(left, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
                if not done:
                    raise GangError(f"Waited {limit_s:.0f} s for {what}, in vain (a gang of {self.size}).")
                more, left = ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
                ray.get(done + more)  # all at a time: one by one would take quadratic time
        except (RayError, GangError) as error:
            all_live = self._all_live()
            for rank, call in enumerate(calls):
                if not _succeeded([call]):
                    self.lose(rank, f"rank {rank} failed while the gang waited for {what}")
            # The worker's error: Ray's error is an instance of its class too, but its text begins with a traceback.
            cause = getattr(error, "cause", None)
            if isinstance(cause, GangError):
                raise GangError(str(cause), cause.cause if all_live else "unresponsive") from error
            if isinstance(error, GangError):
                raise
            ended = BACKENDS[self.spec.backend].if_lost if isinstance(error, RayActorError) else ""
            raise GangError(f"A worker failed while the gang waited for {what}: {error}{ended}") from error
        return list(ray.get(calls))


def _succeeded(calls: list[Any], limit_s: float = _GRACE_S) -> bool:
    """Tell whether all calls succeed within ``limit_s`` seconds."""
    if len(ray.wait(calls, num_returns=len(calls), timeout=limit_s)[0]) < len(calls):
        return False
    try:
        ray.get(calls)
    except RayError:
        return False
    return True
