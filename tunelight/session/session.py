"""Session: the trial that this process trains, and the calls of training code that reach it.

It knows neither Ray nor torch: what it needs of them is handed in.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tunelight.checkpoints import files as checkpoints
from tunelight.checkpoints.writer import Writer
from tunelight.errors import CheckpointError, ContextError, DataError, MetricError, TrialStopped, known_arguments
from tunelight.messages import CheckpointInfo, DatasetHandle, Event, Output, Place
from tunelight.session.boundary import Boundary, Progress, Store
from tunelight.session.mailbox import Mailbox, RankChannel, await_message
from tunelight.session.task import Start, Task

MAKE_LIMIT_S = 3600.0
"""How long rank 0 may take to make a value: it may read and preprocess a dataset."""
_MADE, _FAILED = "made", "failed "

T = TypeVar("T")


class MadeByRankZero:
    """Makes values on rank 0 for all ranks of a trial, and cleans up when the trial ends. Runs on: worker.

    A message cannot carry a reference into Ray's object store or a handle of an actor: it says that the value exists,
    and the other ranks fetch it.

    Args:
        lead: True on rank 0. alone: True if there is no other rank.
        channel: carries rank 0's messages. given: rank 0's values by key.
        fetch: returns rank 0's value of a key. aborted: returns why the trial was aborted, None if it was not.
        datasets: the sweep's datasets.
    """

    def __init__(
        self,
        channel: RankChannel,
        *,
        lead: bool,
        alone: bool,
        given: dict[str, Any],
        fetch: Callable[[str], Any],
        aborted: Callable[[], str | None] = lambda: None,
        datasets: DatasetHandle | None = None,
    ) -> None:
        self.datasets = datasets or DatasetHandle()
        self._channel, self._lead, self._alone = channel, lead, alone
        self._given, self._fetch, self._aborted = given, fetch, aborted
        self._asked: dict[str, int] = {}
        self._undo: list[Callable[[], object]] = []

    def once(self, key: str, make: Callable[[], T], limit_s: float = MAKE_LIMIT_S) -> T:
        """Return the value that ``make`` returns on rank 0; call it on every rank, equally often for each key.

        Raises: what ``make`` raises, on rank 0; DataError on the others if it failed there, or took longer than
        ``limit_s`` seconds; TrialStopped if the trial was aborted meanwhile.
        """
        count = self._asked[key] = self._asked.get(key, 0) + 1
        key = f"{key}/{count}"
        if self._alone:
            return make()
        if not self._lead:
            fetched: T = self._wait(key, limit_s)
            return fetched
        try:
            value = make()
        except BaseException as error:
            self._channel.broadcast(key, f"{_FAILED}{type(error).__name__}: {error}")
            raise
        self._given[key] = value
        self._channel.broadcast(key, _MADE)
        return value

    def _wait(self, key: str, limit_s: float) -> Any:
        message = await_message(self._channel, [key], limit_s, self._aborted)
        if message == _MADE:
            return self._fetch(key)
        if message is not None:
            raise DataError(f"Rank 0 could not open {key.rsplit('/', 1)[0]}: {message.removeprefix(_FAILED)}")
        raise DataError(
            f"Waited {limit_s:.0f} s for rank 0 to open {key.rsplit('/', 1)[0]}. Every rank has to ask for the same "
            "datasets, equally often."
        )

    def check(self) -> None:
        """Raise TrialStopped if the trial was aborted; for code that waits for something else."""
        if (reason := self._aborted()) is not None:
            raise TrialStopped(reason)

    def at_end(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` when the trial ends on this rank, for whatever reason."""
        self._undo.append(undo)

    def end(self) -> None:
        """Call what :meth:`at_end` was given, the last first, and drop all values."""
        while self._undo:
            with contextlib.suppress(Exception):  # its actor may be gone already
                self._undo.pop()()
        self._given.clear()


@dataclass(frozen=True, eq=False)
class Context:
    """The trial that this worker trains. Runs on: worker. Get it with ``tunelight.get_context()``.

    Attributes:
        rank, world_size, local_rank, local_world_size, node_rank: this worker's place in its gang.
        gpu: the index of this worker's GPU among those that its process sees; None without one.
        trial_id, trial_dir: the trial's id and its folder (str).
        config: the trial's configuration, as the search space drew it.
        seed: the trial's seed; it is set on every rank before the train function starts.
        metric: the metric that the sweep judges trials by.
        backend: how the gang communicates: ``ddp``, ``sharded`` or ``horovod``.
        wanted: the gang's intended number of workers; an elastic gang may have fewer for a while.
        repetition: which training of its configuration this is: 0 in the search, then 1, 2, ... (a sweep's
            ``repeats=``).
        folds: how many folds the sweep has, with ``repeats=tl.Folds(5)``; None without folds.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    gpu: int | None
    trial_id: str
    trial_dir: str
    config: dict[str, Any]
    seed: int | None
    metric: str | None
    backend: str
    wanted: int
    _boundary: Boundary = field(repr=False, compare=False)
    repetition: int = 0
    folds: int | None = None

    @property
    def fold(self) -> int | None:
        """The fold to validate on, from 0; None without folds."""
        return None if self.folds is None else self.repetition % self.folds

    @property
    def resume(self) -> CheckpointInfo | None:
        """The checkpoint that this start continues from, and that training code loads; None if from scratch."""
        return self._boundary.given()

    @property
    def number(self) -> int:
        """Number of reports made so far, including those before a restart."""
        return self._boundary.progress.number

    def preempted(self) -> bool:
        """Tell whether the trial has to leave its workers soon: the sweep was told to end, or a node is taken away.

        A loop of your own that reports seldom asks after each step, on every rank, and reports with a checkpoint when
        it is True: the trial ends with that report, and goes on from there later. All ranks get the same answer, as
        long as they exchange gradients between two calls. Lightning's fits need none of this.
        """
        return self._boundary.preempted()

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: str | os.PathLike[str] | Writer | None = None,
        *,
        epoch: int | None = None,
        step: int | None = None,
        filename: str | None = None,
    ) -> None:
        """Report metrics at a boundary of training; the trial may end here. Call it on every rank.

        Args:
            metrics: numbers by name; those of rank 0 are used. Tensors of one element become numbers, other
                tensors tuples of numbers. Text, arrays, and lists and dicts of all these are kept; anything else
                is recorded as its ``repr``, with a warning.
            checkpoint: a file or folder that rank 0 wrote (it is moved into the trial's folder), or a function
                that writes one to the path it is given. The function is called on every rank, at those reports
                that write a checkpoint (``checkpoints=`` of the sweep). Where the storage fails as it writes there,
                the sweep warns and training continues without that checkpoint; its other errors are the trial's.
            epoch, step: progress of training, for the record.
            filename: the file's name in plain Tune's ``Result.checkpoint``.

        It raises TrialStopped (on every rank, at the same report) when the trial ends here, and MetricError when the
        sweep's metric is missing from the first report.
        """
        self._boundary.report(metrics, checkpoint, epoch=epoch, step=step, filename=filename)


class Session:
    """One start of a trial on one rank, by its parts. Runs on: worker.

    ``channel`` carries rank 0's messages to the other ranks, ``post`` sends events to the head, ``mailbox`` has the
    head's decisions, and ``store`` holds states that trials exchange.

    Attributes:
        task, start, place: what is trained, this start of it, and this rank's place in its gang.
        context: what training code may know.
        boundary: reports, and what is decided at each. writing: writes checkpoints.
        exchange: gives this training's state to other trials, and takes theirs.
        shared: values that rank 0 makes once for all ranks, such as shards of datasets.
        ending: True while hooks at the end of a stopped fit run.
    """

    def __init__(  # noqa: PLR0917 - what is trained and where, and the ways to talk of it
        self,
        task: Task,
        start: Start,
        place: Place,
        channel: RankChannel,
        post: Callable[[Event], None],
        mailbox: Mailbox,
        *,
        shared: MadeByRankZero | None = None,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task, self.start, self.place = task, start, place
        self.shared = shared
        self.ending = False
        self._post = post
        self.boundary = Boundary(
            task, start, place, channel=channel, mailbox=mailbox, post=post, store=store, clock=clock
        )
        self.writing, self.exchange = self.boundary.writing, self.boundary.exchange
        self.context = Context(
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            node_rank=place.node_rank,
            gpu=place.gpu,
            trial_id=start.trial_id,
            trial_dir=start.trial_dir,
            config=start.config,
            seed=start.seed,
            metric=task.metric,
            backend=place.backend,
            wanted=place.wanted or place.world_size,
            repetition=start.repetition,
            folds=task.folds,
            _boundary=self.boundary,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        """Return this session: a copy of ``trainer.callbacks`` belongs to the same trial, and a store has no copy."""
        return self

    @property
    def progress(self) -> Progress:
        """How far this start has come."""
        return self.boundary.progress

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written, or the end of a stopped fit is run. Callable from any thread."""
        return self.ending or self.writing.busy

    @property
    def seeds(self) -> bool:
        """Whether random numbers follow the trial's seed: the training code has set no other one."""
        seed = self.start.seed
        return os.environ.get("PL_GLOBAL_SEED") == (None if seed is None else str(seed))

    def begin(self, restored: Callable[[Mapping[str, Any]], dict[str, Any]] = dict) -> None:
        """Start counting the trial's seconds: the training code is about to run.

        ``restored`` gives a configuration the objects of the search space, which the start has as plain data.
        """
        self.start.config.update(restored(self.start.config))
        self.exchange.restored = restored
        self.boundary.stopwatch.start()

    def note(self, text: str) -> None:
        """Warn the person who runs the sweep, once a trial; rank 0's warnings are sent with its next report."""
        self.boundary.notes.add(text)

    def hand_in(self, value: Any) -> None:
        """Send the head a job's result of this rank: a value, or a reference into Ray's object store."""
        self._post(Output(self.place.rank, value, self.start.serial))

    def checkpoint_for_fit(self) -> str | None:
        """Return the checkpoint that the fit now starting continues from; None if it starts from scratch."""
        resume = self.start.resume
        if resume is not None and resume.fit == self.progress.fit >= 0:
            self.boundary.given()
            return str(checkpoints.fetch_local(resume.path))
        return None

    def within_fit(self, trainer: Any) -> bool:
        """Tell whether a Trainer runs inside the trial's fit, as a probe may, and is not the one that fits."""
        return self.progress.fitting not in (None, trainer)

    def check_finished(self) -> None:
        """Finish the trial on this rank. Raises: MetricError if the train function has made no report."""
        self.boundary.end()
        self.writing.settle()
        if not self.progress.continues:
            resume = self.start.resume
            assert resume is not None
            raise CheckpointError(
                f"The trial continues from report {resume.number}, which fit number "
                f"{resume.fit + 1} of its train function made, and the train function has ended without that "
                "fit. Make the same fits at each start, or pass ckpt_path=tunelight.get_checkpoint_path() to the fit "
                "that continues."
            )
        if self.progress.number == 0 and self.task.must_report:
            if self.place.rank > 0:
                raise MetricError(
                    f"The train function returned on rank {self.place.rank} without a report. Every rank has to "
                    "report: call tunelight.report(metrics) on all of them, not on rank 0 alone."
                )
            raise MetricError(
                "The train function returned without a report. Add tunelight.TuneReportCallback to the callbacks of "
                "the Trainer that fits, or call tunelight.report(metrics)."
            )


_current: Session | None = None


def set_current(session: Session | None) -> None:
    """Make ``session`` this process's session. Runs on: worker."""
    global _current  # noqa: PLW0603 - a process trains one trial at a time
    _current = session


def current() -> Session | None:
    """Return this process's session, or None outside of a trial."""
    return _current


def get_session() -> Session:
    """Return this process's session. Runs on: worker. Raises: ContextError outside of a trial."""
    if _current is None:
        raise ContextError(
            "tunelight.get_context() works inside the train function of a trial, on a worker of its gang; "
            "this process is none. Start a sweep with tunelight.run(...)."
        )
    return _current


def get_context() -> Context:
    """Return the context of the trial that this worker trains: rank, world_size, trial_id, config, seed.

    Runs on: worker. Raises: ContextError outside of a trial.
    """
    return get_session().context


@known_arguments
def report(metrics: Mapping[str, Any], checkpoint: str | os.PathLike[str] | Writer | None = None) -> None:
    """Report metrics from training code that has no callback; see :meth:`tunelight.session.session.Context.report`.

    Call it on every rank. Outside of a trial it does nothing, so that a script also runs alone. Runs on: worker.
    Raises: TrialStopped when the trial ends here, MetricError when the sweep's metric is missing.
    """
    if _current is not None:
        get_context().report(metrics, checkpoint)


def get_checkpoint_path() -> str | None:
    """Return the checkpoint that this trial continues from: its path, or None if it starts from scratch.

    A trial that was paused or restarted continues from its last checkpoint. None outside of a trial. Runs on: worker.
    Raises: CheckpointError if a checkpoint in an object store cannot be fetched.
    """
    resume = None if _current is None else get_context().resume
    return None if resume is None else str(checkpoints.fetch_local(resume.path))
