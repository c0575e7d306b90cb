"""One trial or job on a gang, through faults and changes of size."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from tunelight.checkpoints.files import age, keep_spares, where
from tunelight.errors import GangError, TrialError
from tunelight.gang.gang import STOP_LIMIT_S, Gang
from tunelight.gang.orders import DRAINED
from tunelight.gang.watch import describe_slow
from tunelight.messages import (
    CheckpointInfo,
    Continue,
    Decision,
    Ended,
    Event,
    Offer,
    Offered,
    Output,
    Report,
    Saved,
    Slow,
    Stop,
    Text,
    WorkerError,
)
from tunelight.policies import COOLDOWN_S, FailurePolicy, FailureTally
from tunelight.session.task import Start, Task

_LOOK_S: Final = 1.0
"""How often a run looks whether it has to leave its nodes."""
_LONGEST_PAUSE_S: Final = 600.0


# --- The states of a run: what its ranks do now, and what they are ordered to ---------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """The run has not been started, or its owner has ended it, or knows that it has failed."""


@dataclass(frozen=True, slots=True)
class Order:
    """The ranks are ordered to write a checkpoint at the end of a training step, or their next report, and to end."""

    serial: int
    """That of the order, which its answer carries."""
    why: Stop | None
    """Why they have to leave their nodes; None where they start again on another number of workers."""


@dataclass(slots=True)
class Training:
    """The ranks train, or have ended by themselves. It lasts through restarts, until the owner ends the run."""

    failures: FailureTally
    leave: Callable[[], Stop | None]
    """Returns the order to leave the nodes, if there is one."""
    base: CheckpointInfo | None
    """The checkpoint from which the owner started the run; restarts do not count."""
    read: CheckpointInfo | None = None
    """The checkpoint from which the ranks started last, which some may still have to read."""
    met_at: float | None = None
    """When they started last; None before their first start."""
    told: Stop | None = None
    """What the driver has told: to leave, or to end."""
    order: Order | None = None
    """What the ranks are ordered."""
    movable_at: float = -math.inf
    """From when on they may be ordered to leave. Infinite for training code that writes no checkpoints: it cannot leave
    without losing what it has learned."""
    pause_s: float = COOLDOWN_S
    """How long to wait once the storage refuses a checkpoint; each pause is twice the one before."""

    def why_to_leave(self) -> Stop | None:
        """Return the order to leave the nodes, if there is one."""
        return self.told if self.told is not None and self.told.save else self.leave()


@dataclass(frozen=True, slots=True)
class Failed:
    """The run has failed, which is raised after all events that came before."""

    error: Exception


# --- The run -------------------------------------------------------------------------------------


class ResilientRun:
    """Runs one task on a gang. It restarts from the newest checkpoint after a fault, or to change its size.

    Each report is passed on once, also where training restarts behind it. On the head's side the run alone knows
    where the task stands: its last report, how far the ranks may train without an answer, its newest checkpoint and
    its configuration. It may be started again once training has ended. Subclasses say what becomes of notes and
    checkpoints, and from which one it restarts.
    Runs on: trial, driver.

    Args:
        task: what to train.
        start: its first start.
        failures: which failures are survived.
        size: how many workers to use, fewer while some are lost (None: all, as they arrive).
    """

    def __init__(
        self,
        task: Task,
        start: Start,
        failures: FailurePolicy,
        *,
        size: int | None = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self.next_start = start
        """What the next start trains: the configuration, checkpoint and ``until`` of now."""
        self.number = start.number
        """The last report that was passed on."""
        self.seconds: float | None = None
        """How long training had taken by then (see :class:`tunelight.messages.Report`)."""
        self.size = size
        self.handed_in: dict[int, Any] = {}
        """What the ranks of this start have handed in, by rank."""
        self.gang: Gang
        """The gang that it was started on."""
        self._state: Idle | Training | Failed = Idle()
        self._policy = failures
        self._slow: set[tuple[int, int, str]] = set()
        """The ranks that were called slow, each with its worker."""
        self._spares: list[CheckpointInfo] = []
        self._sleep, self._clock = sleep, clock
        self._queue: deque[Report | Text] = deque()
        self._behind = 0
        """The last report before the ranks were started last."""

    # -- what a subclass does its own way

    def say(self, text: str) -> None:
        """Send a note to the person who runs the task."""

    def keep(self, info: CheckpointInfo) -> None:
        """Keep a finished checkpoint, of which the last two and what is in use are kept."""
        self._spares = keep_spares([*self._spares, info], self.in_use)

    def newest(self, number: int, base: CheckpointInfo | None) -> CheckpointInfo | None:
        """Return the newest checkpoint up to report ``number``, to restart from: the last one that ranks reported.

        ``base``: the one from which the run's owner started it.
        """
        return self.resume

    def complete(self, start: Start) -> Start:
        """Return a start with what is too large to be kept from one to the next."""
        return start

    def on_start(self) -> None:
        """Take note of a start of the ranks."""

    # -- the run protocol

    def start(self, gang: Gang, leave: Callable[[], Stop | None] | None = None) -> None:
        """Start training on a gang, formed or not yet, which the caller closes.

        ``leave`` is called now and then; it returns the order to leave the nodes, if there is one, as the driver may
        also give. Training then ends with its next step or report, a checkpoint and an error of type ``DRAINED``, to
        restart elsewhere.
        Raises: TrialError when the gang cannot be formed, or has to leave its nodes.
        """
        self.gang = gang
        self._state = training = Training(FailureTally(self._policy), leave or (lambda: None), self.resume)
        self._queue.clear()
        if self.seconds is None and self.resume is not None:
            self.seconds = self.resume.seconds
        self._start(training)
        self._raise_failure()

    @property
    def started(self) -> bool:
        """True from its start on, until its owner has ended it or knows that it has failed."""
        return not isinstance(self._state, Idle)

    @property
    def training(self) -> bool:
        """True while ranks train, or have left events to read."""
        return self.started and self.gang.running

    @property
    def running(self) -> bool:
        """True while there are events to come."""
        return bool(self._queue) or isinstance(self._state, Failed) or self.training

    @property
    def resume(self) -> CheckpointInfo | None:
        """The newest checkpoint."""
        return self.next_start.resume

    @property
    def in_use(self) -> CheckpointInfo | None:
        """The checkpoint that the running start continues from, and that a rank may still have to read."""
        return self._state.read if isinstance(self._state, Training) and self.training else None

    def resume_from(self, checkpoint: CheckpointInfo | None, number: int | None = None) -> None:
        """Continue from a checkpoint at the next start; ``number``: the last report that was passed on, if another."""
        self.next_start = replace(self.next_start, resume=checkpoint)
        self.number = self.number if number is None else number

    @property
    def waits(self) -> bool:
        """True while the ranks wait at the last report for a decision."""
        until = self.next_start.until
        return isinstance(self._state, Training) and until is not None and self.number >= until

    @property
    def restarted(self) -> bool:
        """True where the ranks were started again behind the last report: none waits at it for a decision."""
        return self.number <= self._behind

    def has_more(self, limit_s: float) -> bool:
        """Tell whether the next report has arrived, or the trial ends well within ``limit_s``.

        Not while the ranks wait at the last report, or are ordered to leave.
        """
        if not isinstance(self._state, Training) or self._state.order is not None or self.waits:
            return False
        arrived = next(
            (event for event in (*self._queue, *self.gang.arrived) if not isinstance(event, Saved | Slow | Stop)), None
        )
        if isinstance(arrived, Report):
            return arrived.number > self.number
        return isinstance(arrived, Ended) and self.gang.ends_well(limit_s)

    def answer(self, decision: Decision) -> None:
        """Send a decision to the ranks."""
        if isinstance(decision, Continue):
            self._allow(decision.until)
        self.gang.answer(decision)

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, None when none came in time. A fault that is survived is no event.

        Raises: TrialError for a fault that is not survived, after all events that came before it.
        """
        while True:
            event = self._queue.popleft() if self._queue else self._receive(timeout_s)
            if event is None:
                return None
            if not (isinstance(self._state, Training) and self._moves(self._state, event)) and self._passes_on(event):
                return event

    def finish(self, reason: str) -> None:
        """End training on all ranks, within a limit; events that come meanwhile are passed on as usual."""
        self._keep_late(self.gang.finish(reason=reason))

    def end(self, reason: str = "stopped", limit_s: float = STOP_LIMIT_S) -> None:
        """End training on all ranks, within a limit. Nobody gets the events that come meanwhile, or are left."""
        if self.training:
            self.gang.finish(limit_s, reason)
        self._state = Idle()

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in place of the next event."""
        self._state = Failed(error)

    # -- events

    def _moves(self, training: Training, event: Event) -> bool:
        """Change the state where an event asks for that: restart, fail, or give up an order; tell whether it does."""
        if isinstance(event, Ended) and event.error is not None:
            cause, late = self.gang.fail(event.error)
            self._keep_late(late)
            self._start(training, cause)
            return True
        if training.order is not None and isinstance(event, Saved) and event.answers == training.order.serial:
            self._left(training, training.order.why, event)
            return True
        return False

    def _receive(self, timeout_s: float | None) -> Event | None:
        """Return the gang's next event, once what it brings is noted; look meanwhile whether to leave the nodes."""
        end = math.inf if timeout_s is None else self._clock() + timeout_s
        while True:
            self._raise_failure()
            if (training := self._unordered) is not None and (why := training.why_to_leave()) is not None:
                if self._clock() >= training.movable_at:
                    self._order_to_leave(training, "moved", why)
                elif why.ends:
                    self._state = Failed(drained_error(why))
            event = self.gang.next_event(max(0.0, min(_LOOK_S, end - self._clock())))
            if event is not None:
                self._note(event)
                return event
            if not self.gang.running or self._clock() >= end:
                return None

    def _obey(self, training: Training, stop: Stop) -> None:
        """Have the ranks end where the driver says so; or note that they have to leave."""
        if training.told is None or training.told.save:
            training.told = stop
            if not stop.save:
                self.gang.answer(stop)
                self.gang.hurry()

    def _note(self, event: Event) -> None:
        """Note what an event brings, as it comes from the gang."""
        if isinstance(event, Report | Saved) and event.checkpoint is not None:
            self.resume_from(event.checkpoint)
            self.keep(event.checkpoint)
        if isinstance(event, Stop) and isinstance(self._state, Training):
            self._obey(self._state, event)
        if isinstance(event, Saved) and event.note is not None:
            self.say(event.note)
        if isinstance(event, Slow):
            location = self.gang.locations[event.rank]
            worker = (event.rank, location.pid, location.node_id)
            if worker not in self._slow:
                self._slow.add(worker)
                self.say(describe_slow(event, location))
        if isinstance(event, Output) and event.serial == self.gang.trials:
            self.handed_in[event.rank] = event.value

    def _keep_late(self, events: Iterable[Event]) -> None:
        """Note events that came while a start was ended, and keep those to pass on."""
        for event in events:
            self._note(event)
            if isinstance(event, Report | Text):
                self._queue.append(event)

    def _passes_on(self, event: Event) -> bool:
        """Tell whether an event is for the caller: a new report, printed text, or the end of a rank."""
        if not isinstance(event, Report):
            return isinstance(event, Text | Ended)
        if event.number <= self.number:
            return False
        self.number = event.number
        self.seconds = max(event.seconds, self.seconds or 0.0)  # after a fault it restarts from less
        if isinstance(self._state, Training):
            self._state.failures.report()
        return True

    def _allow(self, until: int | None) -> None:
        """Let the ranks train to report ``until`` without an answer; they keep what they were allowed before."""
        before = self.next_start.until
        until = None if before is None or until is None else max(before, until)
        self.next_start = replace(self.next_start, until=until)

    # -- starts and faults

    def _start(self, training: Training, cause: WorkerError | None = None) -> None:
        """Start training, after faults as often as the failure policy says; the run has failed where that cannot be.

        ``cause``: the fault after which it starts again. Not where it has to leave: another gang starts it then.
        """
        while True:
            if cause is not None:
                if (delay_s := training.failures.fail(cause)) is None:
                    self._state = Failed(TrialError(cause))
                    return
                self.resume_from(self.newest(self._made, training.base))
                self.say(f"failed on rank {cause.rank} ({cause.type_name}: {cause.message}); going on {self._from()}")
                self._sleep(delay_s)
            if (why := training.why_to_leave()) is not None:
                self._state = Failed(drained_error(why))
                return
            try:
                self._start_once(training)
            except GangError as error:
                cause = head_error(error)
            else:
                return

    def _start_once(self, training: Training) -> None:
        """Let the gang meet, and start the task on it. Raises: GangError."""
        gang, start, before = self.gang, self.next_start, self.gang.size
        self.handed_in, training.order = {}, None
        gang.heal(self.size)
        restart, training.met_at = training.met_at is not None, self._clock()
        if restart and gang.size != before:
            self.say(f"goes on with {gang.size} workers ({before} before)")
        until = None if start.until is None else max(start.until, self.number + 1)
        training.read, self._behind = start.resume, self._made
        gang.start(self.task, self.complete(replace(start, until=until)))
        self.on_start()

    @property
    def _made(self) -> int:
        """The last report that the ranks have made, passed on or not."""
        return max([self.number, *(event.number for event in self._queue if isinstance(event, Report))])

    def _from(self) -> str:
        """Say where training restarts."""
        if self.resume is None:
            return "from the beginning"
        if self.task.job:
            return f"from epoch {self.resume.epoch}, step {self.resume.step}"
        return f"from {where(*age(self.resume))}"

    def _raise_failure(self) -> None:
        if isinstance(self._state, Failed) and not self._queue:
            error = self._state.error
            if isinstance(error, TrialError):  # after another one the owner may yet end the ranks in order
                self._state = Idle()
            raise error

    # -- another size, other nodes

    def resize(self, size: int | None) -> None:
        """Use ``size`` workers soon. Workers that are missing are requested, and waiting ones released, at once."""
        self.size = size
        if self.started:
            self.gang.want(size)

    def resize_if_due(self) -> None:
        """Order a restart on another number of workers, if that was asked for or workers have arrived that can join.

        Call it now and then; it does not wait. No training is lost: at their next boundary the ranks write a
        checkpoint. Training code that cannot write one keeps its workers.
        """
        training = self._unordered
        if training is not None and self._clock() >= training.movable_at and self._size_changes(training):
            self._order_to_leave(training, "resize", None)

    @property
    def _unordered(self) -> Training | None:
        """The state, while ranks train that are not ordered to leave yet."""
        state = self._state
        return state if isinstance(state, Training) and state.order is None and self.gang.running else None

    def _size_changes(self, training: Training) -> bool:
        """Tell whether another start would have the size that was asked for, or at least more workers."""
        gang = self.gang
        if self.size is not None:  # half of the missing workers would gain little
            missing = min(self.size, gang.spec.reservation.wanted) - gang.size
            return missing < 0 or (missing > 0 and gang.ready() >= missing)
        cooled = training.met_at is None or self._clock() - training.met_at >= COOLDOWN_S
        return gang.size < gang.spec.reservation.wanted and cooled and gang.ready() > 0

    def _order_to_leave(self, training: Training, reason: str, why: Stop | None) -> None:
        training.order = Order(self.gang.answer(Stop(reason, save=True)), why)
        self.gang.hurry()

    def _left(self, training: Training, why: Stop | None, saved: Saved) -> None:
        """Restart, now that the ranks end with a checkpoint; or go on, where they wrote none."""
        training.order = None
        if saved.checkpoint is not None:
            training.pause_s = COOLDOWN_S
            self.finish("resize")
            if why is None:
                self._start(training)
            else:
                self._state = Failed(drained_error(why))
        elif saved.refused:
            if training.pause_s == COOLDOWN_S:
                stays = "keeps its size" if why is None else f"stays where it is although {why.reason}"
                self.say(f"{stays} for now: its checkpoint could not be written. That is tried again")
            training.movable_at = self._clock() + training.pause_s
            training.pause_s = min(2 * training.pause_s, _LONGEST_PAUSE_S)
        elif why is not None and why.ends:
            self._state = Failed(drained_error(why))
        else:
            training.movable_at = math.inf
            stays = f"keeps its {self.gang.size} workers" if why is None else f"stays where it is although {why.reason}"
            self.say(f"{stays}: its training code writes no checkpoints")
            if why is None:
                self.gang.want(self.gang.size)

    def offer(self) -> Any:
        """Return a reference to the state of training at its boundary; None where there is none."""
        offered = self.gang.ask(Offer(), Offered) if self.training and not self.restarted else None
        if offered is None:
            return None
        if offered.why is not None:
            self.say(f"could not offer its state to other trials, which take its checkpoint instead: {offered.why}")
        return offered.weights


def drained_error(why: Stop) -> TrialError:
    """Return the error by which a trial leaves its nodes."""
    return TrialError(WorkerError(-1, os.uname().nodename, DRAINED, why.reason, "", cause="preempted"))


def head_error(error: Exception) -> WorkerError:
    """Describe an error on the head's side of a gang."""
    cause = error.cause if isinstance(error, GangError) else "unresponsive"
    return WorkerError(-1, os.uname().nodename, type(error).__name__, str(error), "", cause=cause)
