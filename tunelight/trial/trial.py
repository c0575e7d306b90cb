"""One trial on a gang, from its start to its end, and its seed."""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.lightning import VARIABLE as LIGHTNING_VARIABLE
from tunelight.errors import CheckpointError, TrialError
from tunelight.gang.run import ResilientRun
from tunelight.gang.spec import GangSpec
from tunelight.messages import Adopt, Adoption, CheckpointInfo, DatasetHandle, WorkerError
from tunelight.policies import Divergence
from tunelight.resources import Reservation
from tunelight.session.task import Home, Start, Task
from tunelight.settings import SETTINGS, Checkpoints, Settings

Description = TypeVar("Description", GangSpec, Task)


@dataclass(frozen=True)
class TrialSpec:
    """What all trials of a sweep have in common: their gangs, what the ranks train, and what their heads go by.

    Attributes:
        task: ``train`` is as :class:`tunelight.gang.parcel.Code` sends it; the head does not unpickle it.
        until: the first report of a new trial that waits for an answer (None: none does).
        soft_errors: a failed trial ends with a result that holds its error, so that Tune keeps the head and its gang.
            Otherwise ``step`` raises, as plain Tune expects.
        real_checkpoints: ``save_checkpoint`` gives Tune the checkpoint itself, beside the pointer to it.
        start: how many workers a trial has until a ``Resize`` (None: all that it can get, as they arrive).
        owner: that of the trials' checkpoints.
    """

    gang: GangSpec
    task: Task
    seed: int = 0
    until: int | None = 1
    soft_errors: bool = False
    real_checkpoints: bool = True
    start: int | None = None
    owner: int = 1


def spec_of_sweep(
    settings: Settings,
    reservation: Reservation,
    train: Any,
    *,
    datasets: DatasetHandle | None,
    runtime_env: dict[str, Any] | None,
    lightning: str,
    until: int | None,
    resizes: bool,
    owner: int = 1,
    actor: type[Any] | None = None,
) -> TrialSpec:
    """Return the spec of a sweep's trials. Runs on: driver.

    Args:
        settings: the sweep's.
        reservation: what a trial reserves at first.
        train: the train function, as :class:`tunelight.gang.parcel.Code` sends it.
        datasets: the sweep's, as they are served.
        runtime_env: the workers'.
        lightning: the package of Lightning that the training code is written with.
        until: the first report of a new trial that waits for an answer.
        resizes: whether the scheduler changes the sizes of gangs.
        owner: that of the trials' checkpoints.
        actor: as in :class:`~tunelight.gang.spec.GangSpec`.
    """
    home, judged = Home.here(), settings.judged_by
    return TrialSpec(
        _described(
            GangSpec,
            settings,
            reservation=reservation,
            runtime_env=runtime_env,
            environ={LIGHTNING_VARIABLE: lightning},
            home=home,
            actor=actor,
        ),
        _described(
            Task,
            settings,
            train=train,
            home=home,
            metric=judged["metric"],
            mode=judged["mode"],
            must_report=judged["metric"] is not None,
            checkpoints=settings.checkpoints or Checkpoints(),
            evaluation=settings.evaluation or reservation.evaluation,
            datasets=datasets,
            folds=settings.folds,
        ),
        seed=settings.seed or 0,
        until=until,
        soft_errors=True,
        real_checkpoints=False,
        start=reservation.least if resizes else None,
        owner=owner,
    )


def _described(kind: type[Description], settings: Settings, **given: Any) -> Description:
    """Return a description: what is not ``given`` of its fields is the setting of the same name, if there is one."""
    of_settings = {entry.name: getattr(settings, entry.name) for entry in fields(kind) if entry.name in SETTINGS}
    return kind(**{**of_settings, **given})


logger = logging.getLogger(__name__)


class Trial:
    """One trial on a gang, from its start to its end; ``repetition`` counts the trainings of its configuration.

    ``root``: the trial whose seed it has, if that is not its own (a branch). ``heard``: its last report that the driver
    had received when this head got it, since later ones are made again; None where all count. ``adopted``: what it was
    told to take over last. ``since``: its last report under earlier drivers.

    A head makes one for each trial that Tune gives it, so that nothing of the next trial reaches the one before.
    Runs on: trial.
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
        self.spec = spec
        self.id = trial_id
        self._root, self._heard = root, heard
        self.folder = folder
        self.kept = checkpoints.CheckpointSet(spec.task.checkpoints.keep, spec.task.mode, spec.owner, since)
        self.divergence = Divergence(spec.task.metric, spec.task.mode)
        seed = trial_seed(spec.seed, root or trial_id)
        self.run = ResilientRun(
            spec.task,
            Start(trial_id, str(folder), config, seed, repetition, until=spec.until, owner=spec.owner),
            spec.gang.failures,
            say=self.say,
            keep=self.kept.add,
            newest=self.newest,
            size=spec.start,
        )
        """Its training: the owner of its number, its configuration and the checkpoint to resume from."""
        self.taken = 0
        """The last report that the driver is known to have taken: a later one does not count if it stops the trial."""
        self.passed: int | None = None
        """The report whose checkpoint Tune got last."""
        self.unable: CheckpointError | None = None
        """Why it cannot be resumed, if it cannot."""
        self.error: Exception | None = None
        """That of a decision that could not be carried out."""
        self._adoption = adopted
        self._outcome: str | None = None
        """That of the last order to adopt."""
        self._log: list[str] = []

    def say(self, text: str) -> None:
        """Send a note to the person who runs the sweep, with the next result."""
        logger.warning(text)
        self._log.append(text)

    def drain(self) -> tuple[str, ...]:
        """Return the notes since the last call."""
        log, self._log = self._log, []
        return tuple(log)

    # -- where it resumes

    def load(self, pointer: str | os.PathLike[str] | None, number: int) -> None:
        """Resume from the checkpoint that Tune's checkpoint points to, or from a later one in the trial's folder.

        ``number``: the report at which Tune has paused it. Without a checkpoint it starts from scratch, or,
        under a plain Tuner, ``unable`` says so.
        """
        left = None if pointer is None else checkpoints.import_from_tune(pointer, self.folder)
        self.passed = None if left is None else left.number
        resume = None
        if pointer is not None and left is not None:
            own = Path(left.path).is_relative_to(self.folder)
            upto = (self._heard or 0) if own else 0  # its folder may be ahead of Tune's pointer
            resume = self._after_adoption(
                self._tell(checkpoints.resume_point(self.folder, upto, left, self.kept.counts))
            )
            number = resume.number if resume else left.number
        self.run.resume_from(resume, number)
        self.kept.discard_after(number, self.folder)
        if resume is None and number and self.spec.soft_errors:  # its reports up to here are not passed on again
            self.say(f"was paused at report {number}, and no checkpoint is left: it starts from scratch")
        elif resume is None and number:
            self.unable = CheckpointError(
                f"Trial {self.id} was paused at report {number}, and no checkpoint of it is left. Report with one, or "
                "take a scheduler that does not pause; delete no files in a sweep's folder while it runs."
            )

    def recover(self) -> None:
        """Find the checkpoint to resume from, if the trial has trained before and Tune does not know."""
        checkpoints.remove_temp_files(self.folder, self.spec.owner)
        if self.run.resume is None:
            restored = self.run.number > 0  # by Tune, whose pointer names no checkpoint, and that may restore it again
            found = checkpoints.resume_point(self.folder, self._heard, counts=self.kept.counts)
            resume = self._after_adoption(self._tell(found))
            if resume is not None:
                self.run.resume_from(resume, resume.number)
                self.say(f"goes on from its checkpoint of {checkpoints.where(*checkpoints.age(resume))}")
            if not self.spec.real_checkpoints and not restored:
                checkpoints.unpin(self.folder)
            self.kept.discard_after(self.run.number, self.folder)
            if self._root is not None and resume is None:
                self.unable = self.unable or self._no_beginning()

    def _no_beginning(self) -> CheckpointError:
        return CheckpointError(
            f"Trial {self.id} is a branch, and the checkpoint with which it was to begin is torn or gone. Branch its "
            "parent again."
        )

    def newest(self, number: int) -> CheckpointInfo | None:
        """Return the last valid checkpoint up to report ``number``, to restart from.

        The folder may hold one that no event told of: a worker may have finished it before it died.
        """
        checkpoints.remove_temp_files(self.folder, self.spec.owner)
        point = checkpoints.resume_point(self.folder, number, self.run.started_from, self.kept.counts)
        found = self._after_adoption(self._tell(point))
        if self._root is not None and found is None:
            raise TrialError(WorkerError(0, os.uname().nodename, "CheckpointError", str(self._no_beginning()), ""))
        return found

    @property
    def of_last_report(self) -> CheckpointInfo | None:
        """Its newest checkpoint, if that is of its last report and has what the trial has adopted."""
        info = self.run.resume
        return info if info is not None and info.number == self.run.number and self._has_adopted(info) else None

    def _has_adopted(self, info: CheckpointInfo) -> bool:
        """Tell whether a checkpoint has what the trial has taken over."""
        last = 0 if self._adoption is None else self._adoption.number
        return info.number > last or (info.number == last and (info.adopted or info.between > 0))

    def _after_adoption(self, found: CheckpointInfo | None) -> CheckpointInfo | None:
        """Return where to resume: from the other trial's checkpoint, if the last adoption is in none of its own yet."""
        adoption = self._adoption
        if adoption is None or (found is not None and self._has_adopted(found)):
            return found
        seconds, copy = None if found is None else found.seconds, None
        with suppress(OSError, CheckpointError):
            copy = checkpoints.copy_from_trial(
                self.folder.parent / adoption.folder,
                self.folder,
                adoption.number,
                adoption.parent_number,
                seconds,
                owner=self.spec.owner,
            )
        if copy is None:
            self.say(f"what it adopted after report {adoption.number} is in no checkpoint, and lost")
            return found
        self.say(f"takes what it adopted after report {adoption.number} from a checkpoint of {adoption.parent}")
        return self.kept.add(copy)

    def _tell(self, found: tuple[CheckpointInfo | None, str | None]) -> CheckpointInfo | None:
        """Pass on what resume_point has to say; return the checkpoint."""
        info, warning = found
        if warning is not None:
            self.say(warning)
        return info

    # -- its checkpoints

    def prune(self) -> None:
        """Delete the checkpoints that are not needed any more."""
        in_use = self.run.in_use
        if self.spec.real_checkpoints:  # Tune has copies
            self.kept.known = checkpoints.keep_spares(self.kept.known, in_use)
        else:
            self.kept.prune(self.folder, self.taken, in_use)

    def settle(self) -> None:
        """Find the checkpoints in the folder, now that none is being written, and delete those not needed."""
        with suppress(OSError):  # the store may not answer
            self.kept.look(self.folder)  # the last one may have been finished or lost
        self.prune()

    # -- exchange with other trials

    def adopt(self, adopt: Adopt) -> None:
        """Take over another trial's training and configuration."""
        how = self.run.adopt(adopt)
        self._outcome = how or "none"
        if how is not None:
            self._adoption = Adoption(
                self.run.number, adopt.parent, Path(adopt.folder or adopt.parent).name, adopt.number
            )

    def adoption(self) -> str | None:
        """Return the outcome of the last order to adopt, once: "memory", "disk" or "none"."""
        outcome, self._outcome = self._outcome, None
        return outcome


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
