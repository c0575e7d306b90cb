"""One trial as its gang's head knows it; what all trials of a sweep have in common, and what makes each repeatable."""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError
from tunelight.gang.spec import driver_paths
from tunelight.messages import Adopt, CheckpointInfo, Continue, Lent, OnResize, Report, Task
from tunelight.policies import Divergence, FailurePolicy
from tunelight.resources import Reservation

if TYPE_CHECKING:
    from tunelight.gang.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialSpec:
    """What all trials of a sweep have in common, as their heads know it.

    ``train`` is the cloudpickled train function or a reference to it: the head never opens it.
    ``soft_errors``: a failed trial ends with a result that holds its error, so that Tune keeps the head
    and its gang; without it ``step`` raises, which is what plain Tune expects.
    """

    train: Any
    reservation: Reservation
    backend: str = "ddp"
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    seed: int = 0
    keep: int = 1
    every: int = 1
    every_s: float = 0.0
    share: float = 0.05
    first: Continue = field(default_factory=lambda: Continue(until=1))
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    on_resize: OnResize = field(default_factory=OnResize)
    runtime_env: dict[str, Any] | None = None
    soft_errors: bool = False
    real_checkpoints: bool = True
    verbose: int = 0
    start: int | None = None
    """How many workers a trial has until ``Resize`` says otherwise (None: all that it can get, as they come)."""
    lent: Lent | None = None
    """The sweep's datasets."""
    cwd: str = field(default_factory=os.getcwd)
    sys_path: tuple[str, ...] = field(default_factory=driver_paths)


class Trial:
    """One trial on a gang, from its start to its end. Runs on: trial.

    A head makes one for each trial that Tune gives it. What Tune says of the next trial, its folder above all, does
    not reach the one before.

    Args:
        spec: what all trials of the sweep have in common.
        trial_id: Tune's name for it.
        folder: where its files go.
        config: its configuration.
    """

    def __init__(self, spec: TrialSpec, trial_id: str, folder: Path, config: dict[str, Any]) -> None:
        self.spec = spec
        self.id = trial_id
        self.folder = folder
        self.config = config
        self.number = 0
        """The last report that Tune has heard of."""
        self.until: int | None = spec.first.until
        """The first report that waits for an answer."""
        self.decided = True
        """Whether the last report has its answer, or needs none."""
        self.size = spec.start
        """How many workers it is to have (None: as many as the gang has)."""
        self.run: Run | None = None
        """Its run on the gang, once it has started."""
        self.last: Report | None = None
        self.seconds = 0.0
        """How long it has trained, up to its last report (see :class:`tunelight.messages.Report`)."""
        self.resume: CheckpointInfo | None = None
        """The checkpoint that it goes on from."""
        self.unable: CheckpointError | None = None
        """Why it cannot go on, if it cannot."""
        self.kept = checkpoints.Kept(spec.keep, spec.mode)
        self.divergence = Divergence(spec.metric, spec.mode)
        self._adopted: str | None = None
        self._log: list[str] = []

    def say(self, text: str) -> None:
        """Tell the person who runs the sweep something, with the next result."""
        logger.warning(text)
        self._log.append(text)

    def news(self) -> tuple[str, ...]:
        """Return what was said since this was last asked."""
        log, self._log = self._log, []
        return tuple(log)

    def task(self) -> Task:
        """Return what the gang is to train."""
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
            until=self.until,
            resume=self.resume,
            every=spec.every,
            every_s=spec.every_s,
            share=spec.share,
            verbose=spec.verbose,
            lent=spec.lent,
        )

    def heard(self, report: Report) -> None:
        """Note a report that is about to be passed on."""
        self.number, self.last = report.number, report
        self.seconds = max(self.seconds, report.seconds)  # after a fault it goes back
        self.decided = self.until is None or report.number < self.until

    # -- where it goes on

    def load(self, pointer: str | os.PathLike[str] | None, number: int) -> None:
        """Go on from the checkpoint that Tune's own names, or from a later one that its folder has.

        ``number``: the report at which Tune says that it was paused. Where there is no checkpoint, ``unable`` says so.
        """
        self.resume = self.kept.newest = None
        left = None if pointer is None else checkpoints.import_from_tune(pointer, self.folder)
        self.number = number
        if left is not None:
            own = Path(left.path).is_relative_to(self.folder)
            upto = (checkpoints.read_acked(self.folder) or 0) if own else 0  # its folder may be ahead of Tune's pointer
            self.resume = self._tell(checkpoints.resume_point(self.folder, upto, left))
            self.number = self.resume.number if self.resume else left.number
        self.kept.discard_after(self.number, self.folder)
        if self.resume is None and self.number:
            self.unable = checkpoints.cannot_go_on(self.id, self.number, left)

    def recover(self) -> None:
        """Find where it goes on, if it has trained before and Tune does not say so."""
        checkpoints.remove_temp_files(self.folder)
        if self.resume is None:
            self.resume = self._tell(checkpoints.resume_point(self.folder, checkpoints.read_acked(self.folder)))
            if self.resume is not None:
                self.number = self.resume.number
                self.say(f"goes on from its checkpoint of report {self.number}")
            self.kept.discard_after(self.number, self.folder)

    def newest(self, number: int) -> CheckpointInfo | None:
        """Return the last whole checkpoint up to report ``number``, where it starts again.

        The folder knows more than was heard of: a worker that died may have finished one before.
        """
        checkpoints.remove_temp_files(self.folder)
        return self._tell(checkpoints.resume_point(self.folder, number, self.resume))

    def _tell(self, found: tuple[CheckpointInfo | None, str | None]) -> CheckpointInfo | None:
        """Pass on what a search for a whole checkpoint has to say; return the checkpoint."""
        info, warning = found
        if warning is not None:
            self.say(warning)
        return None if info is None else checkpoints.with_seconds(info, self.folder)

    # -- its checkpoints

    def prune(self) -> None:
        """Delete the checkpoints that nobody needs any more."""
        self.kept.prune(self.folder)

    def settle(self) -> None:
        """Look which checkpoints there are, now that nobody writes one any more, and keep those that are needed."""
        with suppress(OSError):  # a store that does not say just now
            self.kept.known = checkpoints.find(self.folder)  # the last was finished meanwhile, or is lost
        self.prune()

    # -- what it takes over from another trial

    def adopt(self, adopt: Adopt) -> None:
        """Become another trial's training, and remember whose configuration holds from now on."""
        how = None if self.run is None else self.run.adopt(adopt)
        self._adopted = how or "none"
        self.until, self.decided = adopt.until, True
        if how is not None and self.run is not None:
            self.config = dict(adopt.config)
            self.kept.newest = self.run.resume if how == "disk" else None  # the last is of what it was before

    def told_of_adopting(self) -> str | None:
        """Return what became of the last order to adopt, once: "memory", "disk" or "none"."""
        told, self._adopted = self._adopted, None
        return told


def trial_seed(sweep_seed: int, trial_id: str) -> int:
    """Return a trial's seed (32 bits): a function of the sweep's seed and the trial's index.

    The index is the number that a trial id ends with, as tunelight's and Tune's own do; else the whole id.
    """
    tail = trial_id.rsplit("_", 1)[-1]
    key = str(int(tail)) if tail.isdecimal() else trial_id
    digest = hashlib.sha256(f"{sweep_seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
