"""One trial or job on a gang, through faults and changes of size: the run protocol, for whoever wants it resilient."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tunelight.checkpoints.files import copy_from_trial, resume_point
from tunelight.errors import CheckpointError, GangError, TrialError
from tunelight.gang.drain import DRAINED, LOOK_S
from tunelight.messages import (
    Adopt,
    Adopted,
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
    Stop,
    Task,
    Text,
    WorkerError,
    Wrote,
)
from tunelight.policies import COOLDOWN_S, FailureDecision, FailurePolicy

Keep = Callable[[CheckpointInfo], object]
_LONGEST_PAUSE_S = 600.0


class Run:
    """One task on a gang. It goes on from its newest checkpoint after a fault, and with more workers as they arrive.

    Every report is passed on once, also where training goes back behind it. Runs on: trial, driver.

    Args:
        gang: formed or not yet; it stays the caller's.
        task: where to begin; ``number`` and ``resume`` say from where.
        failures: what is survived.
        say: told what happened, for the person who runs it.
        keep: told of each finished checkpoint.
        newest: asked, where training has to start again, for the checkpoint of a report up to the given one (by
            default the last that was heard of).
        fresh: given the task at each start, for what is too large to be kept in between.
        size: how many workers to use; it can have fewer while some are lost (None: all, as they come).
        leave: asked now and then why training has to leave its nodes (None: it need not). It then ends at its next
            boundary, with a checkpoint and an error of type ``DRAINED``, to go on elsewhere.
    """

    def __init__(
        self,
        gang: Any,
        task: Task,
        failures: FailurePolicy,
        *,
        say: Callable[[str], object],
        keep: Keep = lambda _: None,
        newest: Callable[[int], CheckpointInfo | None] | None = None,
        fresh: Callable[[Task], Task] = lambda task: task,
        size: int | None = None,
        leave: Callable[[], str | None] | None = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gang = gang
        self.seen = task.number
        """The last report that was passed on."""
        self._seconds = task.resume.seconds if task.resume else None
        self.resume = task.resume
        """The newest checkpoint."""
        self.size = size
        self.handed_in: dict[int, Any] = {}
        """What the ranks of this start have handed in, by rank."""
        self._task = task
        self._failures = failures
        self._say, self._keep, self._sleep, self._clock = say, keep, sleep, clock
        self._fresh = fresh
        self._newest = newest or (lambda _: self.resume)
        self._until = task.until
        self._queue: deque[Event] = deque()
        self._count = self._row = 0
        self._error: WorkerError | None = None
        self._adopted_at = 0
        self._met = -COOLDOWN_S
        self._can_save = True
        self._save_from, self._save_pause_s = -math.inf, COOLDOWN_S
        self._leaving: int | None = None
        """The serial of the order to leave that the ranks have and have not answered."""
        self._started = False
        self._leave = leave
        self._why: str | None = None

    def start(self) -> None:
        """Start, on a gang that is fit for it. Raises: TrialError when the gang cannot be had, or has to leave."""
        if self._leave is not None and (why := self._leave()) is not None:
            raise TrialError(drained(why))
        try:
            self._start()
        except GangError as error:
            self._try_again(head_error(error))
            self._raise_when_over()

    def _start(self) -> None:
        gang, before = self.gang, self.gang.size
        self._leaving, self.handed_in = None, {}
        gang.heal(self.size)
        self._met = self._clock()
        if self._started and gang.size != before:
            self._say(f"goes on with {gang.size} workers ({before} before)")
        self._started = True
        number = self.resume.number if self.resume else 0
        until = None if self._until is None else max(self._until, self.seen + 1)
        gang.start(self._fresh(replace(self._task, number=number, resume=self.resume, until=until)))

    @property
    def running(self) -> bool:
        """True while there are events to come."""
        return bool(self._queue) or self._error is not None or bool(self.gang.running)

    def answer(self, decision: Decision) -> None:
        """Send a decision to the ranks."""
        if isinstance(decision, Continue) and self._until is not None:
            self._until = None if decision.until is None else max(self._until, decision.until)
        self.gang.answer(decision)

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, None when none came in time. Faults that are survived are none.

        Raises: TrialError for one that is not, after everything that came before it.
        """
        while True:
            if self._queue:
                event: Event | None = self._queue.popleft()
            else:
                self._raise_when_over()
                event = self._wait(timeout_s)
                if event is not None:
                    self._note(event)
            if event is None:
                return None
            if isinstance(event, Ended) and event.error is not None:
                self._fail(event.error)
            elif isinstance(event, Saved) and event.answers == self._leaving:
                self._left(event)
            elif self._take(event):
                return event

    def _wait(self, timeout_s: float | None) -> Event | None:
        """Return the gang's next event; see meanwhile whether it has to leave its nodes."""
        if self._leave is None:
            event: Event | None = self.gang.next_event(timeout_s)
            return event
        end = None if timeout_s is None else self._clock() + timeout_s
        while True:
            self._leave_if_drained()
            event = self.gang.next_event(LOOK_S if end is None else max(0.0, min(LOOK_S, end - self._clock())))
            if event is not None or not self.gang.running or (end is not None and self._clock() >= end):
                return event

    def _leave_if_drained(self) -> None:
        """Have the ranks write a checkpoint and end at their next boundary, if their nodes are to be taken away."""
        if self._leave is not None and self._may_leave():
            self._why = self._leave()
            if self._why is not None:
                self._leaving = self.gang.answer(Stop("moved", save=True))

    def _take(self, event: Event) -> bool:
        """Return False where there is nothing in an event for others, or a report that they have."""
        if isinstance(event, Report):
            if event.number <= self.seen:
                return False
            self.seen, self._row = event.number, 0
            self._seconds = max(event.seconds, self._seconds or 0.0)
            return True
        return isinstance(event, Text | Ended)

    def _note(self, event: Event) -> None:
        """Note what an event brings, as it comes from the gang."""
        if isinstance(event, Report | Saved | Wrote) and event.checkpoint is not None:
            self.resume = event.checkpoint
            self._keep(event.checkpoint)
        if isinstance(event, Wrote) and event.note is not None:
            self._say(event.note)
        if isinstance(event, Output) and event.serial == self.gang.trials:
            self.handed_in[event.rank] = event.value

    def _keep_late(self, events: Iterable[Event]) -> None:
        """Note what came while a start was brought to its end, and keep what is for others."""
        for event in events:
            self._note(event)
            if isinstance(event, Report | Text):
                self._queue.append(event)

    def _raise_when_over(self) -> None:
        if self._error is not None and not self._queue:
            error, self._error = self._error, None
            raise TrialError(error)

    def finish(self, reason: str) -> None:
        """Bring the ranks to their end, within a limit; what came on the way is passed on as if it had come before."""
        self._keep_late(self.gang.finish(reason=reason))

    # -- what trials give one another

    def offer(self) -> Any:
        """Return a reference to what training is made of at its boundary; None where there is nothing to give."""
        offered = self.gang.ask(Offer(), Offered) if self.gang.running else None
        if offered is None:
            return None
        if offered.why is not None:
            self._say(f"could not offer its state to other trials, which take its checkpoint instead: {offered.why}")
        return offered.weights

    def adopt(self, adopt: Adopt) -> str | None:
        """Become another trial's training: in place, else by starting anew from its last checkpoint, if it has one.

        Returns: "memory", "disk", or None where training goes on as it was.
        """
        if self._until is not None:
            self._until = None if adopt.until is None else max(self._until, adopt.until)
        adopted = self.gang.ask(adopt, Adopted) if self.gang.running else None
        if adopted is None:  # it has failed or ended: its end is the next event
            return None
        if adopted.why is None:
            self._task, self._adopted_at = replace(self._task, config=dict(adopt.config)), self.seen
            return "memory"
        if adopt.folder is None or resume_point(adopt.folder)[0] is None:
            self._say(f"goes on as it was: could not adopt {adopt.parent}, for {adopted.why}, and it has no checkpoint")
            self.gang.answer(Continue(adopt.until))
            return None
        return self._start_as(adopt, adopted.why)

    def _start_as(self, adopt: Adopt, why: str) -> str | None:
        """Start anew from another trial's checkpoint; from the own one, if that cannot be had after all."""
        self.finish("adopt")  # what it was writing is finished by then
        try:
            info = copy_from_trial(
                adopt.folder or "", self._task.trial_dir, self.seen, adopt.number, seconds=self._seconds
            )
        except (OSError, CheckpointError) as error:
            info, why = None, f"it could not be copied ({error})"
        if info is None:
            self._say(f"goes on as it was, from its own checkpoint: could not adopt {adopt.parent}, for {why}")
            self.resume = self._newest(self.seen)
        else:
            self._say(f"starts anew from a checkpoint of {adopt.parent}: {why}")
            self._task, self.resume = replace(self._task, config=dict(adopt.config)), info
            self._keep(info)
        try:
            self.start()
        except TrialError as error:
            self._error = error.error  # the next event
        return None if info is None else "disk"

    # -- faults

    def _fail(self, error: WorkerError) -> None:
        cause = self.gang.fail(error)
        self._keep_late(self.gang.late)
        self._try_again(cause)

    def _try_again(self, cause: WorkerError) -> None:
        """Start again as often as the policy says."""
        while True:
            self._count += self._failures.counts(cause)
            self._row += 1
            if self._failures.decide(cause, self._count) is FailureDecision.GIVE_UP:
                self._error = cause
                return
            self.resume = self._newest(
                max([self.seen, *(one.number for one in self._queue if isinstance(one, Report))])
            )
            if self._adopted_at and (self.resume is None or self.resume.number <= self._adopted_at):
                self._say(f"what it adopted after report {self._adopted_at} is in no checkpoint, and lost")
                self._adopted_at = 0
            self._say(f"failed on rank {cause.rank} ({cause.type_name}: {cause.message}); going on {self._from()}")
            self._sleep(self._failures.delay_s(self._row))
            try:
                self._start()
            except GangError as error:
                cause = head_error(error)
            else:
                return

    def _from(self) -> str:
        """Say where training goes on."""
        if self.resume is None:
            return "from the beginning"
        if self._task.job:
            return f"from epoch {self.resume.epoch}, step {self.resume.step}"
        return f"from report {self.resume.number}"

    # -- another size

    def resize(self, size: int | None) -> None:
        """Use ``size`` workers from soon on. What it takes is asked for, and what only waits is given back, at once."""
        self.size = size
        self.gang.want(size)

    def resize_if_due(self) -> None:
        """Go on with another number of workers soon, if that was asked for, or if workers have arrived that can join.

        Call it now and then; waits for nothing. Nothing is lost: at their next boundary the ranks write a checkpoint.
        Training code that cannot write one keeps its workers.
        """
        if self._may_leave() and self._due():
            self._why = (
                None  # a node that was to be drained, and whose checkpoint was refused then, may be kept after all
            )
            self._leaving = self.gang.answer(Stop("resize", save=True))

    def _may_leave(self) -> bool:
        """Tell whether the ranks could be asked now to write a checkpoint and end."""
        able = self._can_save and self._leaving is None and self._error is None and self.gang.running
        return bool(able and self._clock() >= self._save_from)

    def _due(self) -> bool:
        gang = self.gang
        if self.size is not None:  # somebody wants that size now: with half of those who come little would be won
            missing = min(self.size, gang.spec.wanted) - gang.size
            return bool(missing < 0 or (missing > 0 and gang.ready() >= missing))
        return bool(gang.size < gang.spec.wanted and self._clock() - self._met >= COOLDOWN_S and gang.ready())

    def _left(self, saved: Saved) -> None:
        """Go on in another size, now that the ranks leave with a checkpoint; or not, where they could write none."""
        self._leaving = None
        if saved.checkpoint is None and saved.refused:
            self._ask_later()
            return
        if saved.checkpoint is None and self._why is not None:
            self._can_save = False
            self._say(f"stays where it is although {self._why}: its training code writes no checkpoints")
            return
        if saved.checkpoint is None:
            self._can_save = False
            self._say(f"keeps its {self.gang.size} workers: its training code writes no checkpoints")
            self.gang.want(self.gang.size)
            return
        self._save_pause_s = COOLDOWN_S
        self.finish("resize")
        if self._why is not None:
            self._error = drained(self._why)
            return
        self.start()

    def _ask_later(self) -> None:
        """Wait a while until a checkpoint is asked for again, twice as long each time: the storage refused this one."""
        if self._save_pause_s == COOLDOWN_S:
            stays = "keeps its size" if self._why is None else f"stays where it is although {self._why}"
            self._say(f"{stays} for now: its checkpoint could not be written. That is tried again")
        self._save_from = self._clock() + self._save_pause_s
        self._save_pause_s = min(2 * self._save_pause_s, _LONGEST_PAUSE_S)


def drained(why: str) -> WorkerError:
    """Return the error by which a trial leaves its nodes."""
    return WorkerError(-1, os.uname().nodename, DRAINED, why, "", cause="preempted")


def head_error(error: Exception) -> WorkerError:
    """Describe what went wrong on the head's side of a gang."""
    cause = error.cause if isinstance(error, GangError) else "unresponsive"
    return WorkerError(-1, os.uname().nodename, type(error).__name__, str(error), "", cause=cause)
