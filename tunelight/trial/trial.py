"""One trial on a gang, from its start to its end, and its seed."""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError
from tunelight.gang.run import ResilientRun
from tunelight.messages import Adopt, CheckpointInfo, Report
from tunelight.policies import Divergence
from tunelight.session.task import Task
from tunelight.trial.spec import TrialSpec

logger = logging.getLogger(__name__)


class Trial:
    """One trial on a gang, from its start to its end. Runs on: trial.

    A head makes one for each trial that Tune gives it, so that nothing of the next trial reaches the one before.

    Args:
        spec: what all trials of the sweep have in common.
        trial_id: its id in Tune.
        folder: the folder of its files.
        config: its configuration.
        repetition: which training of that configuration it is, from 0.
    """

    def __init__(
        self, spec: TrialSpec, trial_id: str, folder: Path, config: dict[str, Any], repetition: int = 0
    ) -> None:
        self.spec = spec
        self.id = trial_id
        self.folder = folder
        self.config = config
        self.repetition = repetition
        self.number = 0
        """The last report that Tune has."""
        self.size = spec.start
        """How many workers to use (None: all that the gang has)."""
        self.pieces = 1
        """How many pieces its training batches are cut into at its next start."""
        self.run: ResilientRun | None = None
        """Its run on the gang, while there is one."""
        self.last: Report | None = None
        self.seconds = 0.0
        self.compiled = 0
        """How long it has trained, up to its last report (see :class:`tunelight.messages.Report`)."""
        self.resume: CheckpointInfo | None = None
        """The checkpoint to resume from."""
        self.passed: int | None = None
        """The report whose checkpoint Tune got last."""
        self.unable: CheckpointError | None = None
        """Why it cannot be resumed, if it cannot."""
        self.kept = checkpoints.Kept(spec.checkpoints.keep, spec.mode)
        self.divergence = Divergence(spec.metric, spec.mode)
        self._adopted: str | None = None
        self._adopted_at: int | None = None
        """The report after which it adopted last, while that is in no checkpoint that was asked for."""
        self._log: list[str] = []

    def say(self, text: str) -> None:
        """Send a note to the person who runs the sweep, with the next result."""
        logger.warning(text)
        self._log.append(text)

    def news(self) -> tuple[str, ...]:
        """Return the notes since the last call."""
        log, self._log = self._log, []
        return tuple(log)

    def task(self) -> Task:
        """Return the task for the gang."""
        spec = self.spec
        return Task(
            trial_id=self.id,
            trial_dir=str(self.folder),
            config=self.config,
            train=spec.train,
            seed=trial_seed(spec.seed, self.id),
            cwd=spec.cwd,
            sys_path=spec.sys_path,
            metric=spec.metric,
            number=self.number,
            until=spec.first.until,
            resume=self.resume,
            checkpoints=spec.checkpoints,
            passed_on=spec.passes_on,
            verbose=spec.verbose,
            datasets=spec.datasets,
            repetition=self.repetition,
            pieces=self.pieces,
            folds=spec.folds,
            evaluation=spec.evaluation,
        )

    def note(self, report: Report) -> None:
        """Note a report that is about to be passed on to Tune."""
        self.number, self.last = report.number, report
        self.seconds = max(self.seconds, report.seconds)  # after a fault it restarts from less
        self.compiled = report.compiled

    # -- where it resumes

    def load(self, pointer: str | os.PathLike[str] | None, number: int) -> None:
        """Resume from the checkpoint that Tune's checkpoint points to, or from a later one in the trial's folder.

        ``number``: the report at which Tune has paused it. Without a checkpoint ``unable`` says so.
        """
        self.resume = self.kept.newest = None
        left = None if pointer is None else checkpoints.import_from_tune(pointer, self.folder)
        self.number = number
        self.passed = None if left is None else left.number
        if left is not None:
            own = Path(left.path).is_relative_to(self.folder)
            upto = (checkpoints.read_acked(self.folder) or 0) if own else 0  # its folder may be ahead of Tune's pointer
            self.resume = self._after_adoption(self._tell(checkpoints.resume_point(self.folder, upto, left)), upto)
            self.number = self.resume.number if self.resume else left.number
        self.kept.discard_after(self.number, self.folder)
        if self.resume is None and self.number:
            self.unable = checkpoints.cannot_go_on(self.id, self.number, left)

    def recover(self) -> None:
        """Find the checkpoint to resume from, if the trial has trained before and Tune does not know."""
        checkpoints.remove_temp_files(self.folder)
        if self.resume is None:
            acked = checkpoints.read_acked(self.folder)
            found = self._tell(checkpoints.resume_point(self.folder, acked))
            self.resume = self._after_adoption(found, acked)
            if self.resume is not None:
                self.number = self.resume.number
                self.say(f"goes on from its checkpoint of report {self.number}")
            self.kept.discard_after(self.number, self.folder)

    def newest(self, number: int) -> CheckpointInfo | None:
        """Return the last valid checkpoint up to report ``number``, to restart from.

        The folder may hold one that no event told of: a worker may have finished it before it died.
        """
        checkpoints.remove_temp_files(self.folder)
        return self._after_adoption(self._tell(checkpoints.resume_point(self.folder, number, self.resume)), number)

    def _after_adoption(self, found: CheckpointInfo | None, upto: int | None) -> CheckpointInfo | None:
        """Return where to resume: from the other trial's checkpoint, if the last adoption is in none of its own yet."""
        adoption = checkpoints.read_adoption(self.folder)
        if adoption is None or (found is not None and found.number > adoption.number):
            return found
        if upto is not None and adoption.number > upto:  # the driver did not hear of that report
            self._forget_adoption()
            return found
        seconds, copy = None if found is None else found.seconds, None
        with suppress(OSError, CheckpointError):
            copy = checkpoints.copy_from_trial(
                self.folder.parent / adoption.folder, self.folder, adoption.number, adoption.parent_number, seconds
            )
        self._forget_adoption()
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

    def saved(self, info: CheckpointInfo) -> None:
        """Note a checkpoint that was asked for: it has what the trial adopted at its report."""
        if self._adopted_at is not None and info.number >= self._adopted_at:
            self._forget_adoption()

    def _forget_adoption(self) -> None:
        self._adopted_at = None
        with suppress(OSError):
            checkpoints.forget_adoption(self.folder)

    def prune(self) -> None:
        """Delete the checkpoints that are not needed any more."""
        run = self.run
        in_use = run.in_use if run is not None and run.gang.running else None
        if self.spec.real_checkpoints:  # Tune has copies
            self.kept.known = checkpoints.keep_spares(self.kept.known, in_use)
        else:
            self.kept.prune(self.folder, in_use)

    def settle(self) -> None:
        """Find the checkpoints in the folder, now that none is being written, and delete those not needed."""
        with suppress(OSError):  # the store may not answer
            self.kept.known = checkpoints.find(self.folder)  # the last one may have been finished or lost
        self.prune()

    # -- exchange with other trials

    def adopt(self, adopt: Adopt) -> None:
        """Take over another trial's training and configuration."""
        how = None if self.run is None else self.run.adopt(adopt)
        self._adopted = how or "none"
        if how is not None and self.run is not None:
            self.config = dict(adopt.config)
            self.kept.newest = self.run.resume if how == "disk" else None  # earlier ones are of the former training
        if how == "memory":
            self._adopted_at = self.number
            name = Path(adopt.folder or adopt.parent).name
            adoption = checkpoints.Adoption(self.number, adopt.parent, name, adopt.number)
            with suppress(OSError):
                checkpoints.note_adoption(adoption, self.folder)

    def adoption(self) -> str | None:
        """Return the outcome of the last order to adopt, once: "memory", "disk" or "none"."""
        outcome, self._adopted = self._adopted, None
        return outcome


def trial_seed(sweep_seed: int, trial_id: str) -> int:
    """Return a trial's seed (32 bits): a function of the sweep's seed and the trial's index.

    The index is the number that a trial id ends with, as tunelight's and Tune's own do; else the whole id.
    """
    tail = trial_id.rsplit("_", 1)[-1]
    key = str(int(tail)) if tail.isdecimal() else trial_id
    digest = hashlib.sha256(f"{sweep_seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
