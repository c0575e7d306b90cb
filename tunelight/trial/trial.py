"""One trial on a gang, from its start to its end, and its seed."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError, TrialError
from tunelight.gang.gang import STOP_LIMIT_S, Gang
from tunelight.gang.orders import announce_start
from tunelight.gang.run import ResilientRun, Training
from tunelight.gang.spec import GangSpec
from tunelight.messages import (
    Adopt,
    Adopted,
    Adoption,
    CheckpointInfo,
    Continue,
    Report,
    Save,
    Saved,
    Stop,
    WorkerError,
)
from tunelight.policies import Divergence
from tunelight.session.task import Start, Task
from tunelight.stores import PUSH_LIMIT_S, store_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialSpec:
    """What all trials of a Tuner have in common: their gangs, what the ranks train, and how each starts.

    Attributes:
        task: ``train`` is as :class:`tunelight.gang.parcel.Code` sends it; the head does not unpickle it.
        name: the name under which a sweep's heads announce their starts, and Tune knows their class.
        until: the first report of a new trial that waits for an answer (None: none does).
        start: how many workers a trial has until a ``Resize`` (None: all that it can get, as they arrive).
        owner: that of the trials' checkpoints.
    """

    gang: GangSpec
    task: Task
    name: str = "gang"
    seed: int = 0
    until: int | None = 1
    start: int | None = None
    owner: int = 1

    @property
    def of_sweep(self) -> bool:
        """Whether the Tuner is a sweep's.

        Then a failed trial ends with a result that holds its error, so that Tune keeps the head and its gang, and Tune
        gets pointers to checkpoints. In plain Tune ``step`` raises, and ``save_checkpoint`` gives it the checkpoint.
        """
        return self.task.reports_to == "sweep"


class Trial(ResilientRun):
    """One trial of Tune's on a gang, from its start to its end.

    A head makes one for each trial that Tune gives it, so that nothing of the next trial reaches the one before.
    Runs on: trial.

    Args:
        folder: the trial's, with its checkpoints.
        config: its configuration.
        repetition: which training of its configuration it is, from 0.
        root: the trial whose seed it has, if that is not its own (a branch).
        heard: its last report that the driver had received when this head got it, since later ones are made again; None
            where all count.
        adopted: what it was told to take over last.
        since: its last report under earlier drivers.
    """

    def __init__(
        self,
        spec: TrialSpec,
        trial_id: str,
        folder: Path,
        config: dict[str, Any],
        *,
        repetition: int = 0,
        root: str | None = None,
        heard: int | None = None,
        adopted: Adoption | None = None,
        since: int = 0,
    ) -> None:
        seed = trial_seed(spec.seed, root or trial_id)
        start = Start(trial_id, str(folder), config, seed, repetition, until=spec.until, owner=spec.owner)
        super().__init__(spec.task, start, spec.gang.failures, size=spec.start)
        self.spec, self.id, self.folder = spec, trial_id, folder
        self._root, self._heard, self._adoption, self._since = root, heard, adopted, since
        self.kept = checkpoints.CheckpointSet(spec.task.checkpoints.keep, spec.task.mode, spec.owner)
        self.divergence = Divergence(spec.task.metric, spec.task.mode)
        self.passed: int | None = None
        """The report whose checkpoint Tune got last."""
        self.savable = True
        """Whether the training code could write a checkpoint at the last report."""
        self.pausing = False
        """True where Tune has had a checkpoint written since the last step, which it does before a pause."""
        self._outcome: str | None = None
        """That of the last order to adopt."""
        self._log: list[str] = []
        self._began: float | None = None
        """When it began to wait for its gang, until that is described."""
        self._described: tuple[Any, ...] | None = None
        """The workers that were described last; None before it is started."""

    # -- what becomes of its notes, starts and checkpoints

    def say(self, text: str) -> None:
        """Send a note to the person who runs the sweep, with the next result."""
        logger.warning(text)
        self._log.append(text)

    def drain(self) -> tuple[str, ...]:
        """Return the notes since the last call."""
        log, self._log = self._log, []
        return tuple(log)

    def on_start(self) -> None:
        """Announce a start to the driver of a sweep, which listens."""
        if self.spec.of_sweep and ray.is_initialized():
            with suppress(Exception):
                announce_start(self.spec.name, self.id, self.number, self.gang)

    def keep(self, info: CheckpointInfo) -> None:
        """Add a finished checkpoint to those in the folder."""
        self.kept.add(info)

    def prune(self) -> None:
        """Delete the checkpoints that are not needed any more."""
        if self.spec.of_sweep:
            self.kept.prune(self.folder, self.in_use)
        else:  # Tune has copies
            self.kept.known = checkpoints.keep_spares(self.kept.known, self.in_use)

    def end(self, reason: str = "stopped", limit_s: float = STOP_LIMIT_S) -> None:
        """End training, as :meth:`ResilientRun.end`, and delete the checkpoints that are not needed any more."""
        trained, started = self.training, self.started
        super().end(reason, PUSH_LIMIT_S if store_of(self.folder) else limit_s)
        if trained:
            with suppress(OSError):  # the store may not answer
                self.kept.look(self.folder)  # the last one may have been finished or lost
        if started:
            self.prune()

    def save(self) -> CheckpointInfo | None:
        """Return its newest checkpoint, of the last report if there can be one, which is written now if need be."""
        info = self.resume
        complete = info is not None and info.number == self.number and self._has_adopted(info)
        if not complete and self.number and self.training:
            saved = self.gang.ask(Save(), Saved)
            written = None if saved is None else saved.checkpoint
            if written is None:  # the trial ended first; its last report may have written one in the background
                found = checkpoints.find(self.folder)
                written = next((checkpoint for checkpoint in found if checkpoint.number == self.number), None)
            if written is not None:
                self.resume_from(info := self.kept.add(written))
            if info is not None and info.number > self.number:  # what Tune has not heard of is reported again
                info, _ = checkpoints.resume_point(self.folder, self.number)
        return info

    # -- where it resumes

    def load(self, pointer: str | os.PathLike[str] | None, number: int) -> None:
        """Resume from the checkpoint that Tune's checkpoint points to, or from a later one in the trial's folder.

        ``number``: the report at which Tune has paused it. Without a checkpoint it starts from scratch. Raises:
        CheckpointError in that case under a plain Tuner.
        """
        left = None if pointer is None else checkpoints.import_from_tune(pointer, self.folder)
        self.passed = None if left is None else left.number
        resume = None
        if left is not None:
            inside = Path(left.path).is_relative_to(self.folder)
            upto = (self._heard or 0) if inside else 0  # its folder may be ahead of Tune's pointer
            resume = self._resume_point(upto, left)
            number = resume.number if resume else left.number
        self.resume_from(resume, number)
        self.kept.discard_after(number, self.folder)
        if resume is None and number:
            if not self.spec.of_sweep:
                raise CheckpointError(
                    f"Trial {self.id} was paused at report {number}, and no checkpoint of it is left. Report with one, "
                    "or take a scheduler that does not pause; delete no files in a sweep's folder while it runs."
                )
            # Its reports up to here are not passed on again.
            self.say(f"was paused at report {number}, and no checkpoint is left: it starts from scratch")

    def recover(self) -> None:
        """Find the checkpoint to resume from, if the trial has trained before and Tune does not know.

        Raises: TrialError for a branch whose beginning is gone.
        """
        checkpoints.remove_temp_files(self.folder, self.spec.owner)
        if self.resume is None:
            restored = self.number > 0  # by Tune, whose pointer names no checkpoint, and that may restore it again
            resume = self._resume_point(self._heard)
            if resume is not None:
                self.resume_from(resume, resume.number)
                self.say(f"goes on from its checkpoint of {checkpoints.where(*checkpoints.age(resume))}")
            if self.spec.of_sweep and not restored:
                checkpoints.unpin(self.folder)
            self.kept.discard_after(self.number, self.folder)
            self._check_beginning(resume)

    def newest(self, number: int, base: CheckpointInfo | None) -> CheckpointInfo | None:
        """Return the last valid checkpoint up to report ``number``, to restart from; see :meth:`ResilientRun.newest`.

        The folder may hold one that no event told of: a worker may have finished it before it died.
        Raises: TrialError as :meth:`recover`.
        """
        checkpoints.remove_temp_files(self.folder, self.spec.owner)
        found = self._resume_point(number, base)
        self._check_beginning(found)
        return found

    def _check_beginning(self, resume: CheckpointInfo | None) -> None:
        if self._root is not None and resume is None:
            message = (
                f"Trial {self.id} is a branch, and the checkpoint with which it was to begin is torn or gone. Branch "
                "its parent again."
            )
            raise TrialError(WorkerError(0, os.uname().nodename, "CheckpointError", message, ""))

    def _resume_point(self, upto: int | None, base: CheckpointInfo | None = None) -> CheckpointInfo | None:
        """Return where to resume: its own checkpoint, or the other trial's, if the last adoption is in none of its own.

        Arguments as in :func:`tunelight.checkpoints.files.resume_point`.
        """
        checkpoints.take_over(self.folder, self.spec.owner, self._since)
        found, warning = checkpoints.resume_point(self.folder, upto, base)
        if warning is not None:
            self.say(warning)
        if (adoption := self._adoption) is None:
            return found
        took = f"takes what it adopted after report {adoption.number} from a checkpoint of {adoption.parent}"
        if found is not None and self._has_adopted(found):
            if found.number == adoption.number and found.value is None:  # a copy, made by a start that nobody heard of
                self.say(took)
            return found
        folder, seconds, copy = self.folder.parent / adoption.folder, None if found is None else found.seconds, None
        with suppress(OSError, CheckpointError):
            copy = self._copied(folder, adoption.number, adoption.parent_number, seconds)
        if copy is None:
            self.say(f"what it adopted after report {adoption.number} is in no checkpoint, and lost")
            return found
        self.say(took)
        return copy

    def _has_adopted(self, info: CheckpointInfo) -> bool:
        """Tell whether a checkpoint has what the trial has taken over."""
        last = 0 if self._adoption is None else self._adoption.number
        return info.number > last or (info.number == last and (info.adopted or info.between > 0))

    # -- exchange with other trials

    def adopt(self, adopt: Adopt) -> None:
        """Take over another trial's state: in place, else by a restart from its last checkpoint, if it has one."""
        self._allow(adopt.until)
        self._outcome, training, why = "none", self._state, "its workers were started again behind that report"
        if not isinstance(training, Training):
            return
        if not self.restarted:
            if (adopted := self.gang.ask(adopt, Adopted)) is None:
                return  # it has failed or ended: its end is the next event
            why = adopted.why or ""
        if not why:
            self._outcome = "memory"
            self.next_start = replace(self.next_start, config=dict(adopt.config))
        elif self._start_as(training, adopt, why):
            self._outcome = "disk"
        else:
            return
        self._adoption = Adoption(self.number, adopt.parent, Path(adopt.folder or adopt.parent).name, adopt.number)

    def _start_as(self, training: Training, adopt: Adopt, why: str) -> bool:
        """Restart from another trial's checkpoint, or train on as before; tell whether it has that checkpoint."""
        found, lacks = None, "it has no checkpoint"
        try:
            found = checkpoints.resume_point(adopt.folder)[0] if adopt.folder else None
        except OSError as error:
            lacks = f"its checkpoints cannot be read ({error})"
        if found is None:
            self.say(f"goes on as it was: could not adopt {adopt.parent}, for {why}, and {lacks}")
            self.gang.answer(Continue(adopt.until))
            return False
        self.finish("adopt")  # a checkpoint that is being written is finished by then
        self._queue = deque(event for event in self._queue if not isinstance(event, Report))  # of what is given up
        info = None
        try:
            info = self._copied(adopt.folder or "", self.number, adopt.number, self.seconds)
        except (OSError, CheckpointError) as error:
            why = f"it could not be copied ({error})"
        if info is None:
            self.say(f"goes on as it was, from its own checkpoint: could not adopt {adopt.parent}, for {why}")
            self.resume_from(self.newest(self.number, training.base))
        else:
            self.say(f"starts anew from a checkpoint of {adopt.parent}: {why}")
            self.next_start = replace(self.next_start, config=dict(adopt.config), resume=info)
        self._start(training)
        return info is not None

    def _copied(
        self, folder: str | os.PathLike[str], number: int, upto: int | None, seconds: float | None
    ) -> CheckpointInfo | None:
        """Return a copy of another trial's checkpoint; see :func:`tunelight.checkpoints.files.copy_from_trial`."""
        copy = checkpoints.copy_from_trial(folder, self.folder, number, upto, seconds, owner=self.spec.owner)
        return None if copy is None else self.kept.add(copy)

    def adoption(self) -> str | None:
        """Return the outcome of the last order to adopt, once: "memory", "disk" or "none"."""
        outcome, self._outcome = self._outcome, None
        return outcome

    # -- its gang

    def start(self, gang: Gang, leave: Callable[[], Stop | None] | None = None) -> None:
        """Start training on a gang; see :meth:`ResilientRun.start`."""
        self._began, self._described = time.time(), ()
        super().start(gang, leave)

    def describe_gang(self) -> dict[str, Any] | None:
        """Return a description of its gang each time the workers have changed, else None.

        Keys: ``gang`` (its id), ``nodes`` (host and node of each worker, by rank), ``warm`` (whether none of its
        workers is new), ``began`` and ``ready`` (seconds since the epoch between which the trial waited for them).
        """
        if self._described is None:
            return None
        gang = self.gang
        workers = tuple((worker.hostname, worker.node_id, worker.pid) for worker in gang.locations)
        if not gang.size or workers == self._described:
            return None
        began, self._described, self._began = self._began, workers, None
        return {
            "gang": gang.name,
            "nodes": tuple(f"{host}#{node[:6]}" for host, node, _ in workers),
            "warm": gang.warm,
            "began": gang.met_at if began is None else began,
            "ready": gang.met_at if began is None else max(began, gang.met_at),
        }


def trial_seed(sweep_seed: int, trial_id: str) -> int:
    """Return a trial's seed (32 bits): a function of the sweep's seed and the trial's index; the first one's is that.

    The index is the number that a trial id ends with, as tunelight's and Tune's own do; else the whole id.
    """
    tail = trial_id.rsplit("_", 1)[-1]
    key = str(int(tail)) if tail.isdecimal() else trial_id
    if key == "0":  # so that a trial of any sweep can be trained again by a sweep of one
        return sweep_seed % 2**32
    digest = hashlib.sha256(f"{sweep_seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
