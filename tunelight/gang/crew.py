"""Who is in a gang: its seats, those who arrived there, and those of them who met as its ranks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from itertools import groupby
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup

from tunelight.errors import GangError
from tunelight.gang.meeting.rendezvous import JOIN_LIMIT_S, Meeting
from tunelight.gang.placement import arrange, layout
from tunelight.gang.seat import Seat, reserve, sweep_seats
from tunelight.gang.spec import START_LIMIT_S, GangSpec
from tunelight.gang.worker import Location
from tunelight.machine.version_check import ADVICE, differences, node_name
from tunelight.settings.backends import BACKENDS

_LOOK_S = 0.05
_CALL_LIMIT_S = 30.0
_MOST_TRIES = 6
"""How many workers may die on one seat before they have arrived: half a minute of tries."""
_LIVE_LIMIT_S = 5.0
_GRACE_S = 1.0
"""How long ranks may take to finish meeting once one of them cannot."""


class Crew:
    """The workers of a gang. Those that are lost are replaced where they sat, and the others stay warm.

    Runs on: trial (the head's process).
    """

    def __init__(self, spec: GangSpec, group: PlacementGroup | None) -> None:
        self.spec = spec
        self.unfit: str | None = None
        """Why ``heal`` has to replace a worker before another trial, if it has to."""
        self.met = False
        """True while all ranks are where they met, and fit for a trial."""
        self.met_at = 0.0
        self.closed = False
        self.ranks: list[Seat] = []
        self.locations: list[Location] = []
        self._seats = [
            Seat(spec, group, spec.first_bundle + index // spec.workers_per_bundle) for index in range(spec.workers)
        ]
        self._seats += [Seat(spec, of_its_own=True) for _ in range(spec.workers, spec.wanted)]
        self._size: int | None = None
        if spec.wanted > spec.workers:
            sweep_seats()  # a head before this one may have died

    def close(self) -> None:
        """End the workers, and give back what they reserved by themselves."""
        for seat in self._seats:
            seat.dismiss()  # all of them at once
        for seat in self._seats:
            seat.release()
        self.ranks = []
        self.closed = True
        self.unfit = self.unfit or "it was closed"

    @property
    def size(self) -> int:
        """How many ranks the gang has now."""
        return len(self.ranks)

    def want(self, size: int | None, *, busy: bool = False) -> None:
        """Have seats for ``size`` workers from now on (None: for all); give back those of the gang's own beyond it.

        While a trial is ``busy`` on the gang, its ranks keep theirs until they are wanted again after it.
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
        """Return how many workers could join when the gang next meets; start those that are missing. Waits for nothing.

        Only an elastic gang has any: another one waits until it is whole.
        """
        if self.spec.least is None or self.closed:
            return 0
        self._reserve()
        for seat in self._wanted():
            with contextlib.suppress(RayError):  # it is tried again, later each time
                seat.occupy()
                seat.look()
        return sum(seat not in self.ranks for seat in self._arrived())

    def _reserve(self) -> None:
        """Reserve what seats of its own still lack.

        A gang that grows by itself takes one after the other, as they come. Seats that somebody asked for at once
        are of use together only: they are one reservation, on one node if that can be. It is cut where the gang has
        doubled (as it grows by powers of two, so it shrinks), for a reservation can only be given back whole.
        """
        missing = [index for index, seat in enumerate(self._wanted()) if seat.of_its_own and seat.group is None]
        doubled = groupby(
            missing, lambda index: index if self._size is None else (index // self.spec.workers).bit_length()
        )
        for _, block in doubled:
            reserve([self._seats[index] for index in block])

    def heal(self, size: int | None = None) -> None:
        """Make the gang fit for a trial: start who is missing, and meet (anew) if need be. No trial may be running.

        ``size`` is how many ranks to be at most (None: all that there are). An elastic gang that has met before goes
        on at once with those who are there, at least ``least``; another one waits until it is whole.
        Raises: GangError when it cannot be healed in time; close it then and form another, or try again.
        """
        if self.closed:
            raise GangError("The gang cannot be used again: it was closed.")
        self.want(size)
        if self.met and self.size == len(self._arrived()[:size]) and not (size is None and self.ready()):
            return
        self.met = False
        for seat in self._seats[: self.spec.workers]:
            seat.occupy()  # what has to start can do so while the others leave
        self._leave()
        if self.ranks:
            self._gather_round(self.spec.least or self.spec.workers, self.spec.reschedule_timeout_s)
        else:
            self._gather_round(self.spec.workers, START_LIMIT_S)
        self._meet(self._arrived()[:size])
        self.unfit = None

    def _wanted(self) -> list[Seat]:
        """Return the seats that are to have workers: those of the reservation always, they cost nothing more."""
        return self._seats[: None if self._size is None else max(self._size, self.spec.workers)]

    def _arrived(self) -> list[Seat]:
        return [seat for seat in self._wanted() if seat.location is not None]

    def _leave(self) -> None:
        """Have all workers leave where they met; who cannot is replaced."""
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
                    raise GangError(f"{what}: {error}", "exception") from error
                if seat.worker is None and seat.tries >= _MOST_TRIES:
                    raise GangError(f"A worker's process died {seat.tries} times while it started: {seat.lost}")
            if time.monotonic() > deadline:
                there = len(self._arrived())
                lost = next((f" The last that was lost: {seat.lost}" for seat in first if seat.lost), "")
                raise GangError(
                    f"Waited {limit_s:.0f} s for workers to start and import: {there} of {enough} are there.{lost}"
                )

    def _meet(self, seats: list[Seat]) -> None:
        """Let the workers of ``seats`` meet, as ranks in the order of where they run."""
        head = ray.get_runtime_context().get_node_id()
        there = [(seat, seat.location) for seat in seats if seat.location is not None]
        order = arrange([location for _, location in there], head, roams=self.spec.roams)
        self.ranks, self.locations = [], []
        places = [place for _, place in order]
        for index, place in order:
            seat, location = there[index]
            seat.location = replace(location, seen=place.gpus)
            self.ranks.append(seat)
            self.locations.append(seat.location)
        told = differences({node_name(one.hostname, one.node_id, one.address): one.versions for one in self.locations})
        if told:
            raise GangError(f"The gang's workers cannot train together. {' '.join(told)} {ADVICE}", "exception")
        interface, nodes = places[0].interface, layout(places)
        ((port, group_port),) = self._gather(
            [self.workers[0].host.remote(interface, self.spec.collectives, nodes)],
            _CALL_LIMIT_S,
            f"rank 0 to listen on {interface}",
        )
        meeting = Meeting(interface, port, self.spec.collectives, nodes, group_port, self.spec.timeout_s)
        self._gather(
            [worker.join.remote(meeting, place) for worker, place in zip(self.workers, places, strict=True)],
            JOIN_LIMIT_S,
            "its ranks to meet",
        )
        self.met, self.met_at = True, time.time()

    @property
    def workers(self) -> list[Any]:
        """The actors on the ranks' seats, in rank order: where one was lost its replacement, or None yet."""
        return [seat.worker for seat in self.ranks]

    def begin(self) -> None:
        """Note that the ranks' workers are about to start a trial."""
        for seat in self.ranks:
            seat.starts += 1

    @property
    def warm(self) -> bool:
        """True where no rank's worker is new: each had started a trial before this start."""
        return bool(self.ranks) and all(seat.starts > 1 for seat in self.ranks)

    def check_alive(self, limit_s: float) -> None:
        """Ask every worker for a sign of life. Raises: GangError."""
        self._gather([worker.locate.remote() for worker in self.workers], limit_s, "a sign of life")

    def _all_live(self) -> bool:
        """Tell whether every rank answers: if one does not, an error of another may only say so."""
        return _succeeded([worker.locate.remote() for worker in self.workers], _LIVE_LIMIT_S)

    def lose(self, rank: int, reason: str) -> None:
        """End a rank's worker, and start another, which the gang takes in when it is healed."""
        self.met = False
        self.unfit = self.unfit or reason
        self.ranks[rank].vacate(reason)
        self.ranks[rank].occupy()

    def _gather(self, calls: list[Any], limit_s: float, what: str) -> list[Any]:
        """Return what calls to the ranks return. Raises: GangError as soon as one fails; who is not done is ended."""
        deadline = time.monotonic() + limit_s
        left = list(calls)
        try:
            while left:
                done, left = ray.wait(left, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
                if not done:
                    raise GangError(f"Waited {limit_s:.0f} s for {what}, in vain (a gang of {self.size}).")
                more, left = ray.wait(left, num_returns=len(left), timeout=0) if left else ([], [])
                ray.get(done + more)  # all that are there: a look at every call for each of them would be quadratic
        except (RayError, GangError) as error:
            all_live = self._all_live()
            for rank, call in enumerate(calls):
                if not _succeeded([call]):
                    self.lose(rank, f"rank {rank} failed while the gang waited for {what}")
            # What a worker raised. Ray's error is of that class too, but puts a traceback before it.
            told = getattr(error, "cause", None)
            if isinstance(told, GangError):
                raise GangError(str(told), told.cause if all_live else "unresponsive") from error
            if isinstance(error, GangError):
                raise
            ended = BACKENDS[self.spec.backend].if_lost if isinstance(error, RayActorError) else ""
            raise GangError(f"A worker failed while the gang waited for {what}: {error}{ended}") from error
        return list(ray.get(calls))


def _succeeded(calls: list[Any], limit_s: float = _GRACE_S) -> bool:
    """Tell whether all calls have been answered within ``limit_s``, without an error."""
    if len(ray.wait(calls, num_returns=len(calls), timeout=limit_s)[0]) < len(calls):
        return False
    try:
        ray.get(calls)
    except RayError:
        return False
    return True
