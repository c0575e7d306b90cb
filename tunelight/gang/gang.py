"""The head's side of a gang: N workers on their bundles, which run one trial after another.

Every wait has a time limit, and nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RaySystemError, RayTaskError
from ray.util.placement_group import PlacementGroup

from tunelight.checkpoints.writer import SETTLE_LIMIT_S
from tunelight.compat.lightning import VARIABLE as LIGHTNING_VARIABLE
from tunelight.errors import GangError, last_line
from tunelight.gang.meeting.group import Meeting
from tunelight.gang.meeting.rendezvous import JOIN_LIMIT_S
from tunelight.gang.placement import Location, arrange, layout
from tunelight.gang.seat import Seat, await_ends, reserve_seats, sweep_seats
from tunelight.gang.spec import START_LIMIT_S, GangSpec
from tunelight.gang.watch import Collective, Finding, HangWatch, SlowWatch, find_missing
from tunelight.machine.versions import ADVICE, differences, node_name
from tunelight.messages import FAILED, Adopt, Answer, Decision, Ended, Event, Hurry, Stop, WorkerError
from tunelight.session.mailbox import numbered
from tunelight.session.task import Start, Task
from tunelight.settings.backends import BACKENDS

AnswerT = TypeVar("AnswerT", bound=Answer)

STOP_LIMIT_S = 30.0
"""How long a trial may take from a stop to its end: its next report may be an epoch away."""
FAIL_LIMIT_S = 4.0
"""How long the other ranks may take to end once one has failed, before they are killed."""
WRITE_LIMIT_S = SETTLE_LIMIT_S + STOP_LIMIT_S
"""How long a rank that is writing a checkpoint may take to end; it gives up writing after ``SETTLE_LIMIT_S``."""
_WRITING_S = 1.0
"""How often ranks that should have ended are asked whether they are still writing a checkpoint."""
_WRITING_LIMIT_S = 2.0
"""How long they may take to answer."""
_POLL_S = 5.0
"""How long a rank waits for an event before it says how far it is: slow ranks are found by such answers."""
_RECORDS_S = 5.0
"""How long the ranks of a gang that hangs have to say in which collectives they wait."""
_OWN_PACKAGES = {"conda", "container", "image_uri", "pip", "py_modules", "uv"}
"""Fields of a runtime_env that give workers other packages than the driver has."""
_LOOK_S = 0.05
_CALL_LIMIT_S = 30.0
_MOST_TRIES = 6
"""How many workers may die on a seat while they start: half a minute of attempts."""
_LIVE_LIMIT_S = 5.0
_GRACE_S = 1.0
"""How long ranks may take to finish meeting once one of them has failed to."""


class Gang:
    """N workers that train as one: the members, and the trial that they run. A lost worker is replaced on its seat.

    ``heal`` makes it fit for a trial, ``start`` starts one, and ``next_event`` returns its events until every rank has
    ended, with ``answer`` or ``ask`` in between. ``finish`` and ``fail`` end a running trial. An elastic gang trains
    on with the workers that are left; later ones join when it next meets. Use it as a context manager, or call
    ``close``. The workers also end with the process that started them. Runs on: trial (the head's process), driver.
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
        self.name = secrets.token_hex(3)
        """Its id among other gangs."""
        self.trials = 0
        """How many trials have been started on this gang, restarts included."""
        self._polls: dict[Any, int] = {}
        self._hurried: list[Any] = []  # calls by which other ranks are told to, before rank 0 is
        self._buffer: deque[Event] = deque()
        self._asked: dict[int, float] = {}
        self._serial = 0
        self._ended: dict[int, Ended] = {}
        self._watch = HangWatch(spec.failures.hang_timeout_s)
        self._slow = SlowWatch(None)

    # -- life

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def form(cls, spec: GangSpec, group: PlacementGroup | None) -> Gang:
        """Start the workers, each on its bundle, and let them meet. A partial start is undone.

        Raises: GangError when a worker does not start, or they do not meet, in time.
        """
        gang = cls(spec, group)
        try:
            gang.heal()
        except BaseException:
            gang.close()
            raise
        return gang

    def close(self) -> None:
        """End the workers, and release the gang's own reservations.

        It may be called more than once, and on a gang that has not started.
        """
        self.closed = True  # first: another thread may ask meanwhile, and a release may fail
        for seat in self._seats:
            seat.dismiss()  # in parallel
        for seat in self._seats:
            seat.release()
        self.ranks = []
        self.unfit = self.unfit or "it was closed"
        self._polls = {}
        self._buffer.clear()

    # -- its members

    @property
    def size(self) -> int:
        """How many ranks the gang has now."""
        return len(self.ranks)

    def want(self, size: int | None, *, busy: bool | None = None) -> None:
        """Keep seats for ``size`` workers from now on (None: for all); release the gang's own seats beyond that.

        While a trial is ``busy`` on the gang (None: as one runs), its ranks keep their seats until ``want`` is called
        again after it.
        """
        busy = self.running if busy is None else busy
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
        lightning = spec.environ.get(LIGHTNING_VARIABLE, "pytorch_lightning")
        apart = _OWN_PACKAGES & (spec.runtime_env or {}).keys()  # the driver has other packages than its workers, then
        mine = {} if apart else {name: version for name, version in spec.versions.items() if version is not None}
        conflicts = differences({"the driver": mine, **versions}, lightning)
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

    # -- one trial

    @property
    def running(self) -> bool:
        """True while a trial has not ended on every rank, or has events left to read."""
        return bool(self._buffer) or (self.trials > 0 and len(self._ended) < self.size)

    def start(self, task: Task, start: Start) -> None:
        """Start a trial on every rank."""
        self.trials += 1
        self._buffer.clear()
        self._ended, self._hurried = {}, []
        self._watch = HangWatch(self.spec.failures.hang_timeout_s)
        self._slow = SlowWatch(self.spec.failures.limit_of_slow)
        lead = self.workers[0] if self.size > 1 else None
        start = replace(start, serial=self.trials, lead=lead)
        for seat in self.ranks:
            seat.start(task, start)
        self._polls = {}
        for rank in range(self.size):
            self._ask(rank)

    def answer(self, decision: Decision) -> int:
        """Send a decision to rank 0, which passes it on at the next boundary; an ``Adopt`` to every rank.

        Returns: the serial that the answer to it carries, if it has one.
        """
        self._serial += 1
        decision = numbered(decision, self._serial)
        self._watch.restart_timer()  # the ranks may have waited for this
        for rank, worker in enumerate(self.workers if isinstance(decision, Adopt) else self.workers[:1]):
            if worker is not None and rank not in self._ended:  # the seat of an ended rank may have a new worker
                worker.answer.remote(self.trials, decision)
        return self._serial

    def hurry(self) -> None:
        """Have the ranks obey the last stop at the end of a training step, if that comes before a report.

        Rank 0 hears of it last, in ``next_event``: the others have to listen by the time that it tells them at which
        step, and one that is in a long call answers late.
        """
        self._hurried = [
            worker.answer.remote(self.trials, Hurry())
            for rank, worker in enumerate(self.workers)
            if rank > 0 and worker is not None and rank not in self._ended
        ]
        self._hurry_lead()

    def _hurry_lead(self) -> None:
        if not self._hurried and self.workers[0] is not None and 0 not in self._ended:
            self.workers[0].answer.remote(self.trials, Hurry())

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event of the running trial; None when none came within ``timeout_s``.

        A worker that died gives an ``Ended`` with its error.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._buffer:
            left = self._poll_s if deadline is None else deadline - time.monotonic()
            if left <= 0 or not self._polls:
                return None
            ready, _ = ray.wait([*self._hurried, *self._polls], num_returns=1, timeout=min(left, self._poll_s))
            for answered in ready:
                if answered in self._polls:
                    self._take(self._polls.pop(answered), answered)
                else:
                    self._hurried.remove(answered)
                    self._hurry_lead()
            self._drop_silent()
            self._drop_stuck()
        return self._buffer.popleft()

    @property
    def arrived(self) -> tuple[Event, ...]:
        """The events that ``next_event`` returns without waiting."""
        return tuple(self._buffer)

    def ends_well(self, limit_s: float) -> bool:
        """Tell whether rank 0 has ended, and all ranks have within ``limit_s``, without an error.

        Events that come meanwhile are kept for ``next_event``.
        """
        deadline = time.monotonic() + limit_s
        while 0 in self._ended and len(self._ended) < self.size and self._polls:
            ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            for poll in ready:
                self._take(self._polls.pop(poll), poll)
        return len(self._ended) == self.size and all(ended.error is None for ended in self._ended.values())

    @property
    def _silence_limit_s(self) -> float:
        """How long a worker may take to answer a poll: one that holds the GIL, in a long call of a library, cannot."""
        limit_s = self.spec.failures.hang_timeout_s
        return math.inf if limit_s is None else limit_s + self._poll_s

    @property
    def _poll_s(self) -> float:
        return min(_POLL_S, (self.spec.failures.hang_timeout_s or _POLL_S * 4) / 4)

    def _drop_silent(self) -> None:
        """Give up ranks that do not answer a poll, because their process is stopped or stuck.

        An answer may have come earlier without being read, since no events are read between two steps of a trial.
        """
        overdue = [
            (poll, rank)
            for poll, rank in self._polls.items()
            if time.monotonic() - self._asked[rank] > self._silence_limit_s
        ]
        for poll, rank in overdue:
            if not ray.wait([poll], timeout=0)[0]:
                del self._polls[poll]
                self._buffer.append(self._give_up(rank, f"has answered nothing for {self._silence_limit_s:.0f} s"))

    def _drop_stuck(self) -> None:
        """Give up the rank that blocks the others, if the trial hangs."""
        running = [rank for rank in range(self.size) if rank not in self._ended]
        rank = self._watch.stuck(running)
        if rank is not None:
            found = self._missing(running)
            rank = rank if found is None else found.rank
            self._polls = {poll: other for poll, other in self._polls.items() if other != rank}
            limit_s = self.spec.failures.hang_timeout_s
            since = "has not ended" if 0 in self._ended else "hangs: the gang has finished no batch"
            reason = f"{since} for {limit_s:.0f} s (hang_timeout_s)"
            if found is not None:
                reason += f"; {found.text}"
            self._buffer.append(self._give_up(rank, reason))

    def _missing(self, running: Sequence[int]) -> Finding | None:
        """Ask the running ranks in which collectives they wait; return which rank is missing in one."""
        asked = {self.workers[rank].collectives.remote(): rank for rank in running}
        answers: dict[int, tuple[Collective, ...]] = {}
        for reference in ray.wait(list(asked), num_returns=len(asked), timeout=_RECORDS_S)[0]:
            with contextlib.suppress(RayError):  # without it, by the batches that each has done
                answers[asked[reference]] = ray.get(reference)
        return find_missing(answers)

    def _ask(self, rank: int) -> None:
        self._asked[rank] = time.monotonic()
        self._polls[self.workers[rank].poll.remote(self.trials, self._poll_s)] = rank

    def _take(self, rank: int, poll: Any) -> None:
        events: Sequence[Event]
        try:
            events, sign = ray.get(poll)
            self._watch.hear(rank, sign, now := time.monotonic())
            self._buffer.extend(self._slow.hear(rank, sign.steps, self.size, now))
        except RayError as error:
            death = self._death(rank, error)
            self.lose(rank, f"rank {rank} died")
            events = [Ended(rank, error=death)]
        for event in events:
            self._buffer.append(event)
            if isinstance(event, Ended):
                self._note_end(event)
        if rank not in self._ended:
            self._ask(rank)

    def _note_end(self, ended: Ended) -> None:
        self._ended[ended.rank] = ended
        if ended.error is not None or ended.parted:
            self.met = False
        if len(self._ended) < self.size:  # rank 0 serves the others' store until they have ended too
            return
        for rank, each in self._ended.items():
            if each.left_behind:
                self.lose(rank, f"rank {rank} left {'; '.join(each.left_behind)}")
        if self.spec.actor is not None:
            self.met = False
            for seat in self.ranks:
                seat.renew()

    def _give_up(self, rank: int, reason: str) -> Ended:
        """Kill a rank that does not answer or end, which frees its resources and the peers that wait for it."""
        message = f"rank {rank} {reason}"
        self.lose(rank, message)
        node = self.locations[rank].hostname
        ended = Ended(rank, error=WorkerError(rank, node, "GangError", message, "", cause="unresponsive"))
        self._note_end(ended)
        return ended

    def _death(self, rank: int, error: Exception) -> WorkerError:
        """Describe why a poll failed: the process died, or its answer could not be read here."""
        node = self.locations[rank].hostname
        unreadable = isinstance(error, RayTaskError | RaySystemError)  # and would be so again
        died = "what the worker reported could not be sent" if unreadable else "the worker failed"
        if isinstance(error, RayActorError):
            died = "the worker's process died"
        detail = str(error).strip().splitlines()
        cause: Literal["exception", "died", "preempted"] = "exception" if unreadable else "died"
        if getattr(error, "preempted", False):
            cause = "preempted"
        message = f"{died}: {detail[-1 if unreadable else 0] if detail else ''}"
        return WorkerError(rank, node, type(error).__name__, message, str(error), cause=cause)

    def ask(self, decision: Decision, kind: type[AnswerT]) -> AnswerT | None:
        """Send a decision and return its answer; None if the trial ended before that came.

        Events that come meanwhile, answers to other decisions included, are kept for ``next_event``, in order.
        """
        serial = self.answer(decision)
        kept: deque[Event] = deque()
        try:
            while self.running:
                event = self.next_event()
                if isinstance(event, kind) and event.answers == serial:
                    return event
                if event is not None:
                    kept.append(event)
                if isinstance(event, Ended) and event.rank == 0:
                    break
            return None
        finally:
            self._buffer.extendleft(reversed(kept))

    def finish(self, limit_s: float = STOP_LIMIT_S, reason: str = "stopped") -> list[Event]:
        """End the running trial; return the events that came meanwhile, the ends of its ranks included.

        A rank that does not end within ``limit_s`` (``WRITE_LIMIT_S`` while it is writing a checkpoint, or its loggers
        are) is killed, which makes the gang unfit.
        """
        if not self.running:
            return []
        self.answer(Stop(reason))
        self.hurry()
        late = self._until_ended(limit_s)
        self._kill_slow(f"did not stop within {limit_s:.0f} s")
        return late

    def fail(self, first: WorkerError) -> tuple[WorkerError, list[Event]]:
        """End a trial in which a rank has failed, on all ranks; return the error that caused it, and late events.

        Ranks that do not end within ``FAIL_LIMIT_S`` are killed, unless they are writing a checkpoint, from which the
        trial may restart.
        """
        self._watch = HangWatch(None)  # ending has a limit of its own
        for rank, worker in enumerate(self.workers):
            if rank not in self._ended:
                worker.abort.remote(self.trials, f"{FAILED} on rank {first.rank}")
        late = self._until_ended(FAIL_LIMIT_S)
        self._kill_slow(f"did not end within {FAIL_LIMIT_S:.0f} s of the failure of rank {first.rank}")
        errors = [ended.error for ended in self._ended.values() if ended.error is not None]
        # The likeliest cause: primary ones first, then by kind of cause.
        return min([first, *errors], key=lambda found: (found.secondary, _CAUSES.index(found.cause), found.rank)), late

    def _kill_slow(self, reason: str) -> None:
        """Give up the ranks that have not ended."""
        for rank in range(self.size):
            if rank not in self._ended:
                self._give_up(rank, reason)
        self._polls = {}

    def _until_ended(self, limit_s: float) -> list[Event]:
        """Return the events that come until all ranks have ended, or the others have to be killed.

        ``limit_s`` starts again once a checkpoint that was being written is finished.
        """
        now = time.monotonic()
        deadline, last = now + limit_s, now + WRITE_LIMIT_S
        events = list(self._buffer)
        self._buffer.clear()
        wrote = False
        while self.running:
            now = time.monotonic()
            if now >= deadline:
                writes = now < last and self._writing()
                if not (writes or wrote):
                    break
                deadline = time.monotonic() + (_WRITING_S if writes else max(limit_s, _WRITING_S))
                wrote = writes
            event = self.next_event(deadline - now)
            if event is not None:
                events.append(event)
        return events

    def _writing(self) -> bool:
        """Tell whether a rank that has not ended is writing a checkpoint."""
        ranks = [rank for rank in range(self.size) if rank not in self._ended]
        calls = [self.workers[rank].writes.remote(self.trials) for rank in ranks]
        if not calls:
            return False
        answered, _ = ray.wait(calls, num_returns=len(calls), timeout=_WRITING_LIMIT_S)
        for call in answered:
            with contextlib.suppress(RayError):  # its poll fails as well
                if ray.get(call):
                    return True
        return False


def _succeeded(calls: list[Any], limit_s: float = _GRACE_S) -> bool:
    """Tell whether all calls succeed within ``limit_s`` seconds."""
    if len(ray.wait(calls, num_returns=len(calls), timeout=limit_s)[0]) < len(calls):
        return False
    try:
        ray.get(calls)
    except RayError:
        return False
    return True


_CAUSES = ("preempted", "exception", "died", "unresponsive")
