"""Boundary: what happens when training reports, and where it may be saved, exchanged, stopped or continued."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import CheckpointPolicy
from tunelight.checkpoints.writer import CheckpointWriter, Writer
from tunelight.compat.torch import compiled_graphs
from tunelight.errors import CheckpointError, GangError, MetricError, TrialStopped, guess
from tunelight.messages import (
    FAILED,
    GOES_ON,
    RESULT_KEY,
    Adopt,
    Adopted,
    CheckpointInfo,
    Continue,
    Decision,
    Event,
    Offer,
    Offered,
    Place,
    Report,
    Save,
    Saved,
    Stop,
)
from tunelight.session.mailbox import Mailbox, RankChannel, await_message, from_message, to_message
from tunelight.session.task import Start, Task

_NOT_LAST: Final = GOES_ON | {"", "diverged"}
"""Reasons of a stop at whose report the trial does not end, was called off, or has nothing to keep."""
FETCH_LIMIT_S = 60.0
"""How long ranks wait for another trial's state; its head may be busy, or on a node that is gone."""


@dataclass(slots=True)
class Progress:
    """How far one start of a trial has come on this rank."""

    number: int = 0
    """Reports made, including those before a restart."""
    reports: int = 0
    """Reports of this start alone."""
    batches: int = 0
    """Batches of any kind, and ends of epochs and validations, since a Trainer was last set up."""
    begun: Any = None
    """The Trainer that runs, from its set-up to its teardown; of one inside another, the outer one."""
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=1000))
    """Of training steps that the head has not heard of: this rank's own seconds, and all of the step's."""
    fit: int = -1
    """Which fit of the trial is running, or was the last: 0 is the first, -1 none so far."""
    fitting: Any = None
    """What runs the trial's fit, such as a Trainer; None while no fit runs."""
    after: int = 0
    """Reports of the training code since the last fit ended."""
    continues: bool = True
    """False while training repeats what it did before the trial's checkpoint, to reach the fit that wrote it."""

    @property
    def done(self) -> int:
        """The running Trainer's batches, with the start's reports; 0 before the first batch."""
        return self.batches + self.reports if self.batches else 0


class Stopwatch:
    """Seconds of training, including those of earlier starts and without waits for decisions."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock, self._since = clock, clock()

    def start(self) -> None:
        """Count from now on."""
        self._since = self._clock()

    def lap(self) -> None:
        """Add the time since the last lap to ``seconds``."""
        now = self._clock()
        self.seconds, self._since = self.seconds + now - self._since, now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that the block takes."""
        began = self._clock()
        yield
        self._since += self._clock() - began


class Notes:
    """Warnings for the person who runs the sweep, each at most once a trial; rank 0's are sent with its reports."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._known: set[str] = set()

    def add(self, text: str) -> None:
        """Send a warning with the next report, unless it was sent before."""
        if text not in self._known:
            self._known.add(text)
            self._texts.append(text)

    def take(self) -> tuple[str, ...]:
        """Return the warnings added since the last call."""
        texts, self._texts = tuple(self._texts), []
        return texts


class Boundary:
    """One rank's reports, and the gang's decision at each of them. Arguments as in ``Session``. Runs on: worker."""

    def __init__(
        self,
        task: Task,
        start: Start,
        place: Place,
        *,
        channel: RankChannel,
        mailbox: Mailbox,
        post: Callable[[Event], None],
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = Progress(start.number, continues=start.resume is None or start.resume.fit < 0)
        self.writer: Writer | None = None
        """Writes a checkpoint on demand; set by training code that can."""
        self._task, self._start, self._lead = task, start, place.rank == 0
        self._agreement = Agreement(place, channel, mailbox)
        self._mailbox, self._post = mailbox, post
        self.notes = Notes()
        """Warnings that are sent with reports."""
        self.exchange = Exchange(store)
        """Exchanges states with other trials."""
        self.stopwatch = Stopwatch((start.resume.seconds if start.resume else None) or 0.0, clock)
        """The seconds that the trial has trained."""
        started = time.monotonic()
        self.writing = CheckpointWriter(
            lead=self._lead,
            policy=CheckpointPolicy(
                started,
                task.checkpoints,
                last_at=started if task.job else None,
                mode=task.mode,
            ),
            note=self.notes.add,
            post=None if task.passes_on else post,  # a report has its checkpoint only if that is complete
            away=place.node_rank > 0,
            start=f"{start.token}-{start.serial}",
            resume=None if start.resume is None else start.resume.path,
            whole=self._agreement.whole,
        )
        """Writes checkpoints."""
        self._graphs = compiled_graphs()
        """Those of earlier trials."""
        self._stopped: Stop | None = None
        self._leaving: Stop | None = None
        """The stop that follows once the checkpoint that it asks for is written (rank 0)."""
        self._adopted_at = 0
        """The last report at which this training adopted another trial's state."""
        self._between = 0
        """The training step at whose end the gang leaves, while it does so between two reports."""
        self._offered: str | os.PathLike[str] | Writer | None = None
        """The checkpoint that came with the running report."""
        self._left_out: Callable[[], CheckpointInfo | None] | None = None
        """Writes the running report's checkpoint, if it came with one that was not written."""
        self._asked = self._meetings = 0
        """How often training code has asked whether it has to leave, and the ranks have met for that."""
        self._preempted = False
        self._first_epoch: int | None = None
        self._given = False
        """Whether the training code was given the checkpoint that this start continues from."""

    def given(self) -> CheckpointInfo | None:
        """Return the checkpoint that this start continues from, to training code that loads it."""
        self._given = True
        return self._start.resume

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: str | os.PathLike[str] | Writer | None = None,
        *,
        epoch: int | None = None,
        step: int | None = None,
        filename: str | None = None,
        last: bool = False,
    ) -> None:
        """Report metrics and obey the gang's decision; see :meth:`tunelight.session.session.Context.report`.

        ``last``: the fit makes no report after it, as far as is known.
        """
        if self._task.reports_to == "driver":
            return
        if self._stopped is not None:
            raise TrialStopped(self._stopped.reason)
        if not self.progress.continues:
            if self._mailbox.aborted is not None:
                raise TrialStopped(self._mailbox.aborted)
            return  # the driver has this report since the start that wrote the checkpoint
        if self.progress.fitting is None:
            self.progress.after += 1
            if self._repeats():
                return
        plain = plain_metrics(metrics, self.notes.add)
        self.progress.reports += 1
        self._arrive()
        if epoch is None and isinstance(plain.get("epoch"), int):
            epoch = self._from_zero(plain["epoch"])
        if self.progress.reports == 1 and self._lead:
            check_metric(self._task.metric, plain)
        info, self._offered, self._left_out = None, checkpoint, None
        if checkpoint is not None:
            write = partial(self._write, checkpoint, plain, epoch, step, filename)
            if not callable(checkpoint) or self._writes_now(self._value(plain), last=last):
                info = write()
            else:
                self._left_out = partial(write, wait=True)
        if self._lead:
            number, seconds, notes = self.progress.number, self.stopwatch.seconds, self.notes.take()
            made = compiled_graphs() - self._graphs
            self._post(
                Report(
                    number, plain, epoch=epoch, step=step, checkpoint=info, notes=notes, seconds=seconds, compiled=made,
                    savable=checkpoint is not None or self.writer is not None,
                )
            )  # fmt: skip
        self._obey(plain, epoch, step)
        self._offered = self._left_out = None  # training goes on, and changes what a function would write

    def _from_zero(self, epoch: int) -> int:
        """Return an epoch that training code counts, from 0 or from 1, as Lightning counts it."""
        if self._first_epoch is None:
            before = None if self._start.resume is None else self._start.resume.epoch
            self._first_epoch = int(epoch > (0 if before is None else before + 1))
        return epoch - self._first_epoch

    def _repeats(self) -> bool:
        """Return whether this report, which follows a fit, was made before the checkpoint was written."""
        resume, progress = self._start.resume, self.progress
        return resume is not None and progress.fit == resume.fit >= 0 and progress.after <= resume.after

    def reach(self, *, epoch: int, step: int) -> None:
        """Reach a boundary without a report: write a checkpoint if one is due, and obey the gang's decision.

        Call it on every rank. Raises: TrialStopped when the job ends here.
        """
        self._arrive()
        if self.writer is not None and self._writes_now():
            info = self._write(self.writer, {}, epoch, step)
            if self._lead and info is not None:
                self._post(Saved(info))
        self._obey({}, epoch, step)

    @property
    def hurried(self) -> bool:
        """Whether the gang may have to act at the end of a training step."""
        return self._mailbox.hurried and self.progress.continues

    def end_step(self, writer: Writer, *, epoch: int, step: int, batch: int = 0) -> None:
        """Reach the end of a training step, where a gang that has to write a checkpoint soon does so, and may leave.

        Call it on every rank, with equal steps from 1 on, after equally many batches. Raises: TrialStopped when the
        gang leaves.
        """
        if self._mailbox.hurried and self._meet(step, batch, calls=self._mailbox.acts):
            usual, self.writer, self._between = self.writer, writer, step
            self.stopwatch.lap()
            self._obey({}, epoch, step)
            self.writer, self._between = usual, 0

    def _meet(self, step: int, batch: int = 0, *, calls: bool) -> bool:
        """Return whether all ranks are at this step, to act; where one is elsewhere, they do at the next report.

        ``calls``: whether rank 0 calls for that, as it also does where a report has come first.
        """
        name = f"leave {self._meetings}"
        met = self._agreement.meets(name, step, f"{step}, {batch}", calls=self._lead and calls)
        if met is not None:
            self._meetings += 1
            self._mailbox.hurried = False
        return met is True

    def preempted(self) -> bool:
        """Return whether training code has to leave with its next report; see ``Context.preempted``."""
        self._asked += 1
        if self._mailbox.hurried and not self._preempted:
            self._preempted = self._meet(self._asked, calls=self._mailbox.leaving)
        return self._preempted

    def begin_fit(self, by: Any = True, *, asked: bool = False) -> None:
        """Begin the trial's next fit. Call it on every rank.

        A restarted train function runs from its beginning: its fits have the same numbers at each start. One that
        leaves out finished fits passes the trial's checkpoint to the one that goes on (``asked``). ``by`` runs the fit.
        """
        progress, resume = self.progress, self._start.resume
        progress.fitting, progress.after, progress.fit = by, 0, progress.fit + 1
        if resume is not None and not progress.continues and (asked or progress.fit == resume.fit):
            progress.fit, progress.continues = resume.fit, True
            self.stopwatch.start()

    def agree(self, key: str, value: str, *, end: str = "", past: str = "") -> str:
        """Return rank 0's ``value`` of ``key``; see :meth:`Agreement.agree`. Call it on every rank."""
        return self._agreement.agree(key, value, self.progress.number, end=end, past=past)

    def end_fit(self) -> None:
        """End a fit: files that are reported from now on are the training code's own."""
        self.progress.fitting = None

    def end(self) -> None:
        """End the trial's reports: a rank that reports once more fails in place of waiting for rank 0."""
        self._agreement.end(self.progress.number)

    def _arrive(self) -> None:
        """Count a report. Raises: CheckpointError if training has begun anew, under numbers that go on."""
        if self._lead and self._start.resume is not None and not self._given:
            raise CheckpointError(
                f"The trial goes on after report {self._start.number}, and its training code reports again without "
                "having loaded the checkpoint of that, so that it has begun anew. Load "
                "tunelight.get_checkpoint_path() where that is not None; a Trainer's fit does so by itself."
            )
        self.progress.number += 1
        self.stopwatch.lap()

    def _obey(self, metrics: Mapping[str, Any], epoch: int | None, step: int | None) -> None:
        """Act on the gang's decisions, the same on every rank, until one lets training continue or stops it."""
        with self.stopwatch.paused():
            while not isinstance(
                decision := self._agreement.decide(self.progress.number, self._next_decision), Continue
            ):
                if isinstance(decision, Stop):
                    self._stopped = decision
                    last = decision.reason not in _NOT_LAST and not decision.reason.startswith(FAILED)
                    if last and self._left_out and (info := self._left_out()) is not None:
                        self._answer(Saved(info))
                    raise TrialStopped(decision.reason)
                if isinstance(decision, Save):
                    self._save(decision, metrics, epoch, step)
                elif isinstance(decision, Offer):
                    self._answer(self.exchange.offer(decision, lead=self._lead))
                else:
                    assert isinstance(decision, Adopt)
                    metrics = self._adopt(decision, metrics)

    def _next_decision(self) -> Decision:
        """Return rank 0's next decision; a stop that asks for a checkpoint becomes a save, and a stop after it."""
        if self._leaving is not None:
            leaving, self._leaving = self._leaving, None
            return leaving
        number = self.progress.number
        while True:
            decision = self._mailbox.take(number, ANSWER_LIMIT_S)
            if not isinstance(decision, Save | Stop) or (isinstance(decision, Stop) and not decision.save):
                return decision
            leave = Stop(decision.reason) if isinstance(decision, Stop) else None
            info = None if self._between or self._adopted_at == number else self.writing.written(number)
            if info is None:  # or it was written before the adopted state replaced the training's own
                self._leaving = leave
                return Save(decision.serial)
            self._post(Saved(info, decision.serial))  # this report's own checkpoint: there is no need for another
            if leave is not None:
                return leave

    def _save(self, save: Save, metrics: Mapping[str, Any], epoch: int | None, step: int | None) -> None:
        writer = self._offered if callable(self._offered) else self.writer
        info = None if writer is None else self._write(writer, metrics, epoch, step, wait=True)
        if info is None:
            self._leaving = None
        self._left_out = None
        can = writer is not None or self.progress.fitting is not None  # a fit at another time than a Trainer in it
        self._answer(Saved(info, save.serial, info is None and can))

    def _adopt(self, adopt: Adopt, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adopt another trial's state; return the metrics that hold for this training afterwards."""
        adopted = self.exchange.adopt(adopt, self._start.config)
        if adopted.why is None:
            self._adopted_at, metrics, self._left_out = self.progress.number, {}, None
            self._mailbox.put(Continue(adopt.until))  # if nothing was adopted, the head decides next
        self._answer(adopted)
        return metrics

    def _answer(self, event: Event) -> None:
        if self._lead:
            self._post(event)

    def _writes_now(self, value: float | None = None, *, last: bool = False) -> bool:
        """Return whether this report writes a checkpoint, the same on every rank."""
        number = self.progress.number
        due = last or number % self._task.checkpoints.every == 0
        return due and self._agreement.writes(
            number, lambda: self._mailbox.saves or self.writing.admit(value, last=last)
        )

    def _value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the sweep's metric of a report."""
        value = metrics.get(self._task.metric) if self._task.metric else None
        return float(value) if isinstance(value, int | float) else None

    def _write(
        self,
        checkpoint: str | os.PathLike[str] | Writer,
        metrics: Mapping[str, Any],
        epoch: int | None,
        step: int | None,
        filename: str | None = None,
        *,
        wait: bool = False,
    ) -> CheckpointInfo | None:
        """Write this report's checkpoint into the trial's folder; return it if it is complete already (rank 0)."""
        number = self.progress.number
        of_fit = self.progress.fitting is not None or checkpoint == self.writer
        name = checkpoints.file_name(number, self._between, self._start.owner)
        info = CheckpointInfo(
            path=str(Path(self._start.trial_dir, checkpoints.FOLDER, name)),
            number=number,
            between=self._between,
            epoch=epoch,
            step=step,
            fit=self.progress.fit if of_fit else -1,
            after=self.progress.after if of_fit else 0,
            value=self._value(metrics),
            name=filename,
            seconds=self.stopwatch.seconds,
            adopted=self._adopted_at == number,
            owner=self._start.owner,
        )
        return self.writing.write(info, checkpoint, wait=wait)


# Metrics of a report as plain values: the trial's head and Tune have neither torch nor a GPU to read others.


_RESERVED = frozenset({"done", "should_checkpoint", RESULT_KEY})
"""Names that Tune gives a meaning to."""
_EXACT: dict[type, Callable[[Any], Any]] = {bool: bool, int: int.__int__, float: float.__float__, str: str.__str__}
"""Others cannot read values of classes that derive from these, such as a script's Enum."""


def plain_metrics(metrics: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    """Return metrics with plain values; ``note`` is called with a warning for each that is recorded as text.

    Raises: MetricError for anything but a mapping, and for names that are reserved.
    """
    if not isinstance(metrics, Mapping):
        raise MetricError(f"A report holds metrics by name, report({{'loss': 0.5}}), not {metrics!r}.")
    plain = {str(name): _plain(str(name), value, note) for name, value in metrics.items()}
    if taken := _RESERVED & plain.keys():
        raise MetricError(f"No metric may be called {', '.join(sorted(taken))}: Ray Tune would obey it.")
    return plain


def check_metric(metric: str | None, metrics: Mapping[str, Any]) -> None:
    """Raise MetricError if the sweep's metric is missing from a trial's first report."""
    if metric is not None and metric not in metrics:
        raise MetricError(
            f"The sweep is judged by metric {metric!r}, but the trial's first report holds "
            f"{', '.join(sorted(metrics)) or 'no metric at all'}."
            f"{guess(metric, metrics)} Report it, or name another with metric=."
        )


def _plain(name: str, value: Any, note: Callable[[str], None]) -> Any:
    for kind, exact in _EXACT.items():
        if isinstance(value, kind):
            return exact(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(name, inner, note) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(name, item, note) for item in value)
    if callable(getattr(value, "item", None)) and math.prod(getattr(value, "shape", ()) or (1,)) == 1:
        return value.item()
    if value is None or type(value).__module__.partition(".")[0] == "numpy":
        return value
    if callable(getattr(value, "tolist", None)):
        return tuple(value.tolist())  # Tune's TensorBoard logger tries to draw a list
    note(f"The metric {name!r} is no number but a {type(value).__qualname__}: its text is recorded.")
    return repr(value)


# --- Agreement: all ranks act on the same decision at the same report -----------------------------

ANSWER_LIMIT_S = 3600.0
"""How long a report waits for a decision. Synchronous schedulers may take their time; none takes an hour."""
PART_LIMIT_S = 600.0
"""How long rank 0 waits for the others' parts of a folder."""
MEET_LIMIT_S = 5.0
"""How long rank 0 waits for the others at the end of a training step at which all are to leave; twice."""
_ENDED, _WRITE, _SKIP, _READY = "ended", "write", "skip", "ready"


class Agreement:
    """Rank 0 decides and broadcasts; the other ranks wait for it. Runs on: worker.

    ``mailbox``: decisions from the head; on ranks other than 0, only states to adopt and an abort.
    """

    def __init__(self, place: Place, channel: RankChannel, mailbox: Mailbox) -> None:
        self._place, self._channel, self._mailbox = place, channel, mailbox
        self._turn = 0
        self._calls: dict[str, int] = {}
        """Name of a meeting -> the step at whose end it is."""

    def decide(self, number: int, decide: Callable[[], Decision]) -> Decision:
        """Return the gang's next decision at report ``number``; ``decide`` makes it, on rank 0.

        Raises: GangError if it does not arrive, or if this rank reports more often than rank 0; TrialStopped after an
        abort.
        """
        self._turn += 1
        if self._place.rank == 0:
            decision = decide()
            self._broadcast(self._turn, to_message(decision))
            return decision
        received = from_message(self._receive(self._turn, number))
        if isinstance(received, Adopt):
            return self._mailbox.take_adopt(received.serial, ANSWER_LIMIT_S) or Stop(self._mailbox.aborted or "stopped")
        return received

    def writes(self, number: int, admit: Callable[[], bool]) -> bool:
        """Return whether report ``number`` writes a checkpoint; ``admit`` decides it, on rank 0."""
        if self._place.rank == 0:
            admitted = admit()
            self._broadcast(-number, _WRITE if admitted else _SKIP)
            return admitted
        return self._receive(-number, number) == _WRITE

    def whole(self, count: int, *, folder: bool, refused: bool) -> int | None:
        """Say whether the storage has refused this rank's part of a checkpoint; ``count``: of checkpoints here.

        On rank 0, where it is a ``folder``, wait for the parts of the others, and return the first rank whose part was
        refused, if one was. Raises: GangError if a part does not come; TrialStopped after an abort.
        """
        if self._place.rank > 0:
            self._broadcast(f"part {count}/{self._place.rank}", _SKIP if refused else _READY)
            self._channel.delete(f"part {count - 1}/{self._place.rank}")
            return None
        lost = [0] if refused else []
        for rank in range(1, self._place.world_size) if folder else ():
            turn = f"part {count}/{rank}"
            message = await_message(self._channel, [turn], PART_LIMIT_S, lambda: self._mailbox.aborted)
            if message is None:
                late = f"Rank {rank} has not written its part of a folder within {PART_LIMIT_S:.0f} s after rank 0"
                raise GangError(f"{late}: every rank has to pass checkpoint=.")
            lost += [rank] if message == _SKIP else []
        return next(iter(lost), None)

    def agree(self, key: str, value: str, number: int, *, end: str = "", past: str = "") -> str:
        """Return rank 0's ``value`` of ``key``, after report ``number``. Raises: TrialStopped after an abort.

        ``end``: another key, whose value is returned if rank 0 has come to that one. ``past``: a key that every rank
        has read.
        """
        if self._place.rank == 0:
            self._broadcast(key, value)
            if past:
                self._channel.delete(past)
            return value
        return self._receive(key, number, *([end] if end else []))

    def meets(self, what: str, step: int, where: str, *, calls: bool) -> bool | None:
        """Return whether all ranks are at the end of this step, of those that each of them counts; None: not yet.

        Rank 0 calls for the step after its own, where ``calls`` says so. No rank can have gone beyond that in training
        that reduces gradients in each step, and so every rank hears of it in time; elsewhere one may have, and all get
        False. ``what``: the name of the meeting, another one each time. ``where`` has to be equal on all ranks, too.
        Raises: TrialStopped after an abort.
        """
        lead = self._place.rank == 0
        if what not in self._calls:
            called = (str(step + 1) if calls else None) if lead else self._channel.receive(what, 0)
            if called is None:
                return None
            self._calls[what] = int(called)
            if lead:
                self._broadcast(what, called)
        return None if step < self._calls[what] else self._all_at(what, where, lead=lead)

    def _all_at(self, what: str, where: str, *, lead: bool) -> bool:
        """Return on each rank whether all of them have come to the same place, and wait there."""

        def heard(limit_s: float, *turns: str) -> str | None:
            return await_message(self._channel, turns, limit_s, lambda: self._mailbox.aborted)

        mine = f"{what}/{self._place.rank}"
        if not lead:
            self._broadcast(mine, where)
            if heard(2 * MEET_LIMIT_S, f"{what}/ready", f"{what}/all") != _READY:
                return False  # and rank 0 will not hear that this rank waits
            self._broadcast(f"{mine}/waits", where)
            return heard(12 * MEET_LIMIT_S, f"{what}/all") == _WRITE
        met = True
        for suffix in ("", "/waits"):
            end = time.monotonic() + MEET_LIMIT_S
            others = (f"{what}/{rank}{suffix}" for rank in range(1, self._place.world_size))
            met = met and all(heard(end - time.monotonic(), other) == where for other in others)
            if met and not suffix:
                self._broadcast(f"{what}/ready", _READY)
        self._broadcast(f"{what}/all", _WRITE if met else _SKIP)
        return met

    def end(self, number: int) -> None:
        """Make a rank fail that reports once more after rank 0's last report, ``number``, in place of waiting."""
        if self._place.rank == 0:
            for turn in (self._turn + 1, -number - 1):
                self._broadcast(turn, _ENDED)

    def _broadcast(self, turn: int | str, message: str) -> None:
        if self._place.world_size > 1:
            self._channel.broadcast(turn, message)

    def _receive(self, turn: int | str, number: int, *others: str) -> str:
        """Return rank 0's message for ``turn``, or for one of the others."""
        message = await_message(self._channel, [turn, *others], ANSWER_LIMIT_S, lambda: self._mailbox.aborted)
        if message == _ENDED:
            raise GangError(
                f"Rank {self._place.rank} made report {number}, but rank 0's train function has returned before "
                "it: every rank has to report equally often."
            )
        if message is None:
            raise GangError(
                f"Rank {self._place.rank} reached report {number} and rank 0 did not within "
                f"{ANSWER_LIMIT_S:.0f} s: every rank has to report equally often."
            )
        return message


# --- Exchange of training states between running trials, through a store in memory ---


class Store(Protocol):
    """Holds a state between two trials."""

    def put(self, value: Any) -> Any:
        """Copy a state into the store and return a reference to it."""

    def get(self, reference: Any, timeout_s: float) -> Any:
        """Return the state that a reference leads to; None if nothing was offered. Raises: the store's errors."""


class Training(Protocol):
    """Reads and replaces the state of a training. Runs on: worker, every rank at the same boundary."""

    def give(self) -> Any | None:
        """Return the full state; the one of rank 0 is used."""

    def agree(self, yes: bool) -> bool:
        """Return whether ``yes`` is True on all ranks."""

    def take(self, state: Any, before: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        """Load ``state``, and change the values of ``before`` to those of ``config``; return why not, if not."""


class Exchange:
    """One rank's side of offering and adopting. Runs on: worker."""

    def __init__(self, store: Store | None) -> None:
        self.training: Training | None = None
        """Set by the reporting callback; None if training code has none."""
        self.restored: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
        """Gives a configuration the objects of the search space."""
        self._store: Any = store  # without one nothing is offered or adopted

    def offer(self, offer: Offer, *, lead: bool) -> Offered:
        """Put the state at this boundary into the store. Called on every rank; the answer of ``lead`` is sent.

        If the store fails, training continues and the answer says why.
        """
        state = None if self.training is None else self.training.give()
        if not lead or state is None:
            return Offered(None, answers=offer.serial)
        try:
            return Offered(self._store.put(state), answers=offer.serial)
        except Exception as error:  # noqa: BLE001 - Ray's store fails in a dozen ways
            return Offered(None, why=f"{type(error).__name__}: {error}", answers=offer.serial)

    def adopt(self, adopt: Adopt, config: dict[str, Any]) -> Adopted:
        """Load another trial's state, and replace the contents of ``config`` by its configuration; or change nothing.

        Called on every rank: either all of them adopt, or none.
        """
        began = time.monotonic()
        if self.training is None:
            return Adopted("nothing of tunelight's reports from a Trainer there", answers=adopt.serial)
        state, why = None, "nothing was offered"
        if adopt.weights is not None:
            try:
                state = self._store.get(adopt.weights, FETCH_LIMIT_S)
            except Exception as error:  # noqa: BLE001 - Ray has a dozen errors for an object whose owner is gone
                why = f"what was offered is gone ({type(error).__name__})"
        if not self.training.agree(state is not None):
            why = why if state is None else "another rank could not get what was offered"
            return Adopted(why, answers=adopt.serial)
        new = self.restored(adopt.config)
        refused = self.training.take(state, config, new)
        if refused is None:
            config.clear()
            config.update(new)
        return Adopted(refused, time.monotonic() - began, adopt.serial)
