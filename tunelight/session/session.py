"""The worker's own context: who am I, what am I training, and the one call that reports.

A session knows neither Ray nor torch. What it needs from them is handed in: ``control`` carries rank 0's
word to the other ranks, ``post`` carries events to the head.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.policy import CheckpointPolicy
from tunelight.checkpoints.writer import CheckpointWriter, Writer
from tunelight.compat.arguments import known_arguments
from tunelight.errors import ContextError, GangError, MetricError, TrialStopped, guess
from tunelight.messages import (
    RESULT_KEY,
    Adopt,
    CheckpointInfo,
    Continue,
    Decision,
    Event,
    Offer,
    Output,
    Place,
    Report,
    Save,
    Saved,
    Stop,
    Wrote,
)
from tunelight.session.exchange import Exchange, Store
from tunelight.session.mailbox import Control, Mailbox, decode, encode
from tunelight.session.shared import Sharing
from tunelight.session.task import Task

ANSWER_LIMIT_S = 3600.0
"""How long a report waits for a decision. Synchronous schedulers may take their time; nothing takes an hour."""
_POLL_S = 0.2
_ENDED, _WRITE, _SKIP = "ended", "write", "skip"
_RESERVED = frozenset({"done", "should_checkpoint", RESULT_KEY})
"""Names that mean something to Tune."""


class Session:
    """What a worker knows of its trial. Runs on: worker. Get it with ``tunelight.get_context()``.

    Attributes:
        rank, world_size, local_rank, local_world_size, node_rank: this worker's place in its gang.
        trial_id, trial_dir: the trial's id and its folder (str).
        config: the trial's configuration, as the search space drew it.
        seed: the trial's seed; it is set on every rank before the train function starts.
        number: reports made so far, those before a restart included.
        wanted: how many workers the gang is meant to have; it may have fewer for a while.
    """

    def __init__(
        self,
        task: Task,
        place: Place,
        control: Control,
        post: Callable[[Event], None],
        mailbox: Mailbox,
        *,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self.rank = place.rank
        self.world_size = place.world_size
        self.local_rank = place.local_rank
        self.local_world_size = place.local_world_size
        self.node_rank = place.node_rank
        self.gpu = place.gpu
        self.trial_id = task.trial_id
        self.trial_dir = task.trial_dir
        self.config = task.config
        self.seed = task.seed
        self.number = task.number
        self.resume = task.resume
        self.metric = task.metric
        self.verbose = task.verbose
        self.job = task.job
        self.backend = task.backend
        self.wanted = task.wanted or place.world_size
        self.on_resize = task.on_resize
        self.heard = task.heard
        self.reports = 0
        """Reports of this start alone."""
        self.progress = 0
        """Batches and reports of this start so far: what shows that this rank gets on."""
        self.begun = False
        """True once a Trainer of this start has come to its set-up."""
        self.fit = -1
        """Which fit of the trial is running (0 is the first)."""
        self.writer: Writer | None = None
        """How to write a checkpoint now, if the training code told."""
        self.sharing: Sharing | None = None
        """What rank 0 makes once for all ranks: shards of datasets."""
        self.exchange = Exchange(store)
        """What gives this training's state to other trials, and takes theirs."""
        self._serial = task.serial
        self._every, started, passed_on = task.checkpoints.every, time.monotonic(), task.job and task.heard
        self.writing = CheckpointWriter(
            lead=self.rank == 0,
            policy=CheckpointPolicy(
                started,
                replace(task.checkpoints, share=1.0) if passed_on else task.checkpoints,
                last_at=started if task.job else None,
            ),
            note=self.note,
            post=None if passed_on else post,  # such reports go on to Tune, each with its checkpoint
            away=self.node_rank > 0,
        )
        self.seconds = (task.resume.seconds if task.resume else None) or 0.0
        """How long the trial had trained at its last report, earlier starts included."""
        self._clock, self._since = clock, clock()
        self._control = control
        self._post = post
        self._mailbox = mailbox
        self._turn = 0
        self._stopped: Stop | None = None
        self._leaving: Stop | None = None
        self._saved = False
        self._adopted = 0
        self._notes: list[str] = []
        self._said: set[str] = set()

    def begin(self) -> None:
        """Count the trial's seconds from here: the training code is about to run."""
        self._since = self._clock()

    def note(self, text: str) -> None:
        """Warn the person who runs the sweep, once a trial; it travels with the next report (rank 0's)."""
        if text not in self._said:
            self._said.add(text)
            self._notes.append(text)

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: str | os.PathLike[str] | Writer | None = None,
        *,
        epoch: int | None = None,
        step: int | None = None,
        filename: str | None = None,
    ) -> None:
        """Report metrics at a boundary of training, and learn there whether to go on. Call it on every rank.

        Args:
            metrics: numbers by name; rank 0's are used. Tensors of one element are read as numbers, others as
                tuples of them. Text, arrays, and lists and dicts of all these are passed on too; of anything else,
                its ``repr``, and the person is told.
            checkpoint: a file or folder that rank 0 wrote (it is moved into the trial's folder), or a
                function that writes one to the path it is given. The function is called on every rank, at
                those reports that are to write one (``checkpoints=`` of the sweep); an OSError of it is
                told to the person and costs that checkpoint only.
            epoch, step: where training stands, for the record.
            filename: what plain Tune's ``Result.checkpoint`` calls the file.

        Raises: TrialStopped (on every rank, at the same report) when the trial ends here; MetricError when
            the sweep's metric is not among those of the first report.
        """
        if not self.heard:
            return
        if self._stopped is not None:
            raise TrialStopped(self._stopped.reason)
        if not isinstance(metrics, Mapping):
            raise MetricError(f"A report holds metrics by name, report({{'loss': 0.5}}), not {metrics!r}.")
        self.number += 1
        self.reports += 1
        self._count_seconds()
        self.progress += bool(self.progress)  # what is counted in batches is watched; reports alone may be hours apart
        clean = {str(name): self._plain(str(name), value) for name, value in metrics.items()}
        if taken := _RESERVED & clean.keys():
            raise MetricError(f"No metric may be called {', '.join(sorted(taken))}: Ray Tune would obey it.")
        if epoch is None and isinstance(clean.get("epoch"), int):
            epoch = clean["epoch"]
        if self.reports == 1:
            self._check_metric(clean)
        info = None
        if checkpoint is not None and (not callable(checkpoint) or self._writes_now()):
            info = self._write(checkpoint, clean, epoch, step, filename)
        if self.rank == 0:
            notes, self._notes = tuple(self._notes), []
            self._post(
                Report(self.number, clean, epoch=epoch, step=step, checkpoint=info, notes=notes, seconds=self.seconds)
            )
        self._obey(clean, epoch, step)

    def _plain(self, name: str, value: Any) -> Any:
        """Return a metric as the trial's head and Tune can read it: they have neither torch nor a GPU."""
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, Mapping):
            return {str(key): self._plain(name, inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            inner = [self._plain(name, one) for one in value]
            return inner if isinstance(value, list) else tuple(inner)
        if callable(getattr(value, "item", None)) and math.prod(getattr(value, "shape", ()) or (1,)) == 1:
            return value.item()
        if type(value).__module__.partition(".")[0] == "numpy":
            return value
        if callable(getattr(value, "tolist", None)):
            return _tuples(value.tolist())
        self.note(f"The metric {name!r} is no number but a {type(value).__qualname__}: its text is recorded.")
        return repr(value)

    def _count_seconds(self) -> None:
        now = self._clock()
        self.seconds, self._since = self.seconds + now - self._since, now

    def boundary(self, *, epoch: int, step: int) -> None:
        """Come to a boundary of a job that reports nothing: write a checkpoint if one is due, learn whether to go on.

        Call it on every rank. Raises: TrialStopped when the job ends here.
        """
        self.number += 1
        self._count_seconds()
        if self.writer is not None and self._writes_now():
            info = self._write(self.writer, {}, epoch, step)
            if self.rank == 0 and info is not None:
                self._post(Wrote(info))
        self._obey({}, epoch, step)

    def _check_metric(self, metrics: Mapping[str, Any]) -> None:
        if self.metric is not None and self.metric not in metrics:
            raise MetricError(
                f"The sweep is judged by metric {self.metric!r}, but the trial's first report holds "
                f"{', '.join(sorted(metrics)) or 'no metric at all'}."
                f"{guess(self.metric, metrics)} Report it, or name another with metric=."
            )

    def _obey(self, metrics: Mapping[str, Any], epoch: int | None, step: int | None) -> None:
        """Learn rank 0's word for this boundary and act on it, the same on every rank."""
        began = self._clock()
        while True:
            decision = self._agree()
            if isinstance(decision, Continue):
                self._since += self._clock() - began  # the wait is no training
                return
            if isinstance(decision, Save):
                info = None if self.writer is None else self._write(self.writer, metrics, epoch, step, wait=True)
                if self.rank == 0:
                    self._tell_saved(info, decision.serial, refused=info is None and self.writer is not None)
            elif isinstance(decision, Offer | Adopt):
                metrics = self._exchange(decision, metrics)
            else:
                break
        self._stopped = decision
        raise TrialStopped(decision.reason)

    def _exchange(self, decision: Offer | Adopt, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Offer or adopt; return the metrics that this training can claim from now on."""
        answer: Event
        if isinstance(decision, Offer):
            answer = self.exchange.offer(decision, lead=self.rank == 0)
        else:
            answer = adopted = self.exchange.adopt(decision, self.config)
            if adopted.why is None:
                self._adopted, metrics = self.number, {}
                self._mailbox.put(Continue(decision.until))  # else the head has the next word
        if self.rank == 0:
            self._post(answer)
        return metrics

    def _agree(self) -> Decision:
        self._turn += 1
        if self.rank == 0:
            decision = self._next_decision()
            if self.world_size > 1:
                self._control.say(self._turn, encode(decision))
            return decision
        word = self._hear(self._turn)
        heard: Decision | None = None if word is None else decode(word)
        if isinstance(heard, Adopt):
            heard = self._mailbox.take_adopt(heard.serial, ANSWER_LIMIT_S)
        return Stop(self._mailbox.aborted or "stopped") if heard is None else heard

    def _next_decision(self) -> Decision:
        """Return rank 0's next decision; a stop that wants a checkpoint comes as a save, and once that is made."""
        if self._leaving is not None:
            leaving, self._leaving = self._leaving, None
            if self._saved:
                return leaving
        while True:
            decision = self._mailbox.take(self.number, ANSWER_LIMIT_S)
            if not isinstance(decision, Save | Stop) or (isinstance(decision, Stop) and not decision.save):
                return decision
            leave = Stop(decision.reason) if isinstance(decision, Stop) else None
            info = None if self._adopted == self.number else self.writing.written(self.number)
            if info is None:  # or it is of before the training became another
                self._leaving = leave
                return Save(decision.serial)
            self._tell_saved(info, decision.serial)  # this report's own: no rank need write another
            if leave is not None:
                return leave

    def _tell_saved(self, info: CheckpointInfo | None, serial: int, *, refused: bool = False) -> None:
        self._saved = info is not None
        self._post(Saved(info, serial, refused))

    def _writes_now(self) -> bool:
        """Return whether this report writes a checkpoint: rank 0 decides it for all."""
        if self.number % self._every:
            return False
        if self.rank == 0:
            admitted = self.writing.admit()
            if self.world_size > 1:
                self._control.say(-self.number, _WRITE if admitted else _SKIP)
            return admitted
        return self._hear(-self.number) == _WRITE

    def _hear(self, turn: int) -> str | None:
        """Return rank 0's word for ``turn``; None when the trial was called off."""
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while time.monotonic() < deadline:
            if self._mailbox.aborted is not None:
                return None
            word = self._control.hear(turn, _POLL_S)
            if word == _ENDED:
                raise GangError(
                    f"Rank {self.rank} made report {self.number}, but rank 0's train function has returned before it: "
                    "every rank has to report equally often."
                )
            if word is not None:
                return word
        raise GangError(
            f"Rank {self.rank} reached report {self.number} and rank 0 did not within "
            f"{ANSWER_LIMIT_S:.0f} s: every rank has to report equally often."
        )

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
        """Write checkpoint ``number`` into the trial's folder; return it if it is finished already (rank 0)."""
        folder = Path(self.trial_dir, checkpoints.FOLDER)
        value = metrics.get(self.metric) if self.metric else None
        info = CheckpointInfo(
            path=str(folder / checkpoints.file_name(self.number)),
            number=self.number,
            epoch=epoch,
            step=step,
            fit=max(self.fit, 0),
            value=float(value) if isinstance(value, int | float) else None,
            name=filename,
            seconds=self.seconds,
        )
        return self.writing.write(info, checkpoint, wait=wait)

    def hand_in(self, value: Any) -> None:
        """Send the head what a job made on this rank: a value, or a reference to one in Ray's object store."""
        self._post(Output(self.rank, value, self._serial))

    def checkpoint_for_fit(self) -> str | None:
        """Return the checkpoint that the fit now starting should go on from, if there is one."""
        if self.resume is not None and self.resume.fit == max(self.fit, 0):
            return str(checkpoints.here(self.resume.path))
        return None

    def check_finished(self) -> None:
        """Raise if the train function returned without having done its part."""
        if self.rank == 0 and self.world_size > 1:
            for turn in (self._turn + 1, -self.number - 1):
                self._control.say(turn, _ENDED)  # a rank that would report once more learns why it can't
        self.writing.settle()
        if self.reports == 0 and self.number == 0 and not self.job:
            if self.rank > 0:
                raise MetricError(
                    f"The train function returned on rank {self.rank} without a report. Every rank has to report: "
                    "call tunelight.report(metrics) on all of them, not on rank 0 alone."
                )
            raise MetricError(
                "The train function returned without a report. Add tunelight.TuneReportCallback to its "
                "Trainer's callbacks, or call tunelight.report(metrics)."
            )


_current: Session | None = None


def set_current(session: Session | None) -> None:
    """Make ``session`` the one that this process works in. Runs on: worker."""
    global _current  # noqa: PLW0603 - one trial a process, by design
    _current = session


def current() -> Session | None:
    """Return this process's session, or None outside of a trial."""
    return _current


def get_context() -> Session:
    """Return the context of the trial that this worker trains: rank, world_size, trial_id, config, seed.

    Runs on: worker. Raises: ContextError outside of a trial.
    """
    if _current is None:
        raise ContextError(
            "tunelight.get_context() works inside the train function of a trial, on a worker of its gang; "
            "this process is none. Start a sweep with tunelight.run(...)."
        )
    return _current


@known_arguments()
def report(metrics: Mapping[str, Any], checkpoint: str | os.PathLike[str] | Writer | None = None) -> None:
    """Report metrics from training code that has no callback; see :meth:`Session.report`.

    Call it on every rank. Runs on: worker. Raises: ContextError outside of a trial, TrialStopped when the
    trial ends here, MetricError when the sweep's metric is missing.
    """
    get_context().report(metrics, checkpoint)


def get_checkpoint_path() -> str | None:
    """Return the checkpoint this trial should go on from: its path, or None if it starts from scratch.

    A trial that was paused or restarted finds its last checkpoint here. Runs on: worker. Raises: ContextError outside
    of a trial, CheckpointError where it lies in a store and cannot be fetched.
    """
    resume = get_context().resume
    return None if resume is None else str(checkpoints.here(resume.path))


def _tuples(value: Any) -> Any:
    """Return lists in lists as tuples, which Tune's TensorBoard logger does not try to draw."""
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
