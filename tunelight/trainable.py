"""GangTrainable: one Tune trial holds one gang. It translates between the two, and loops over nothing."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import ray

from tunelight import checkpoints, stores
from tunelight.errors import CheckpointError, GangError, TrialError
from tunelight.exchanging import Exchanging
from tunelight.gang.drain import DRAINED, moved_away, reason_to_leave
from tunelight.gang.gang import Gang
from tunelight.gang.holding import Holding
from tunelight.gang.run import Run, head_error
from tunelight.gang.spec import GangSpec
from tunelight.imports import collector_resting
from tunelight.masking import masked_error
from tunelight.messages import (
    RESULT_KEY,
    Adopt,
    CheckpointInfo,
    Continue,
    Decision,
    Ended,
    Report,
    Resize,
    Stop,
    Task,
    WorkerError,
)
from tunelight.policies import Divergence, classify
from tunelight.trial import TrialSpec, trial_seed

with collector_resting():  # a trial's head waits for this before its workers start
    from ray.tune import PlacementGroupFactory, Trainable
    from ray.tune.result import DONE, RESULT_DUPLICATE, TRAINING_ITERATION

logger = logging.getLogger(__name__)


class GangTrainable(Exchanging, Trainable):
    """A Tune trial whose training runs on a gang. Made by :func:`make_trainable`. Runs on: trial.

    The gang starts with the first step, outlives the trial when Tune re-uses this actor, and is replaced
    when it cannot be used again.
    """

    spec: ClassVar[TrialSpec]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the whole gang's reservation."""
        return cls.spec.reservation.factory()

    # -- Tune's calls, in the order in which they come

    def setup(self, config: dict[str, Any]) -> None:
        """Remember the first trial; its gang starts later, for this actor may be thrown away unused."""
        self._gang: Gang | None = None
        self._run: Run | None = None
        self._holding = Holding()
        self._log: list[str] = []
        self._new_trial(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial. Always True: what went wrong is raised by ``step``, where it can be handled."""
        self._finish("stopped")
        self._new_trial(new_config)
        return True

    def _new_trial(self, config: dict[str, Any]) -> None:
        self._config = config
        self._number = 0
        self._until: int | None = self.spec.first.until
        self._decided = True
        self._run = self._adopted = None
        self._size = self.spec.start
        self._unable: CheckpointError | None = None
        self._resume: CheckpointInfo | None = None
        self._kept = checkpoints.Kept(self.spec.keep, self.spec.mode)
        self._last: Report | None = None
        self._divergence = Divergence(self.spec.metric, self.spec.mode)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from what ``save_checkpoint`` left."""
        self._resume = self._kept.newest = None
        if isinstance(checkpoint, str | os.PathLike):
            self._resume = checkpoints.adopt(checkpoint, self._trial_dir())
        self._number = self._iteration
        left = self._resume
        if left is not None:
            self._resume = self._tell(self._from(left))
            self._number = self._iteration = self._resume.number if self._resume else left.number
        self._kept.forget_after(self._number, self._trial_dir())
        if self._resume is None and self._number:
            self._unable = checkpoints.cannot_go_on(self.trial_id, self._number, left)
            if not self.spec.soft_errors:
                raise self._unable

    def _from(self, left: CheckpointInfo) -> tuple[CheckpointInfo | None, str | None]:
        """Return from where a trial goes on: Tune knows where it paused, its folder how far it came after that."""
        folder = self._trial_dir()
        heard = checkpoints.heard(folder)
        if heard is not None and heard > left.number and Path(left.path).is_relative_to(folder):
            return checkpoints.newest_whole(folder, heard, left)
        return checkpoints.whole_or_before(left)

    def step(self) -> dict[str, Any]:
        """Return the trial's next report; or its end."""
        self._kept.prune(self._trial_dir())  # Tune has the report before: what that made needless may go
        try:
            run = self._run
            if run is None:
                run = self._start()
            else:
                run.resize_if_due()
                if not self._decided:
                    self._answer(Continue(until=self._number + 1))
            return self._next_result(run)
        except TrialError as error:
            return self._failed(error.error)
        finally:
            self._give_back()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Leave in ``checkpoint_dir`` a pointer to the trial's newest checkpoint, written now if need be.

        Under plain Tune (``real_checkpoints``) the file itself lies beside it. A gang that is resized ends the trial
        here: Tune asks when it is to be paused, and what the gang holds beyond its start is wanted by others then.
        """
        info = self._kept.newest or self._resume
        gang = self._gang
        fresh = info is not None and info.number == self._number
        if not fresh and gang is not None and gang.running and self._number:
            saved = gang.save().checkpoint
            if saved is None:  # it ended before it could: it may have written this report's in the background
                saved = next((one for one in checkpoints.find(self._trial_dir()) if one.number == self._number), None)
            if saved is not None:
                info = self._kept.add(saved)
        checkpoints.write_pointer(checkpoint_dir, info)
        if info is not None and self.spec.real_checkpoints:
            checkpoints.copy_into(info, checkpoint_dir)
        if self.spec.start is not None and info is not None:
            self._resume = info  # and if Tune goes on with it all the same, then from here
            self._finish("paused")

    def cleanup(self) -> None:
        """End the trial and the gang."""
        with suppress(Exception):
            self._finish("stopped", limit_s=5.0)
        self._close_gang()

    # -- the scheduler's door

    def decide(self, decision: Decision | Resize) -> None:
        """Take a decision that Tune has no word for, between two steps.

        ``Continue(until=n)`` lets the trial run on unasked to report n; ``Stop`` ends it at its next report,
        before Tune comes to say so; ``Resize(n)`` lets it go on with n workers, of those that the gang may have,
        from a report on at which all of them are there; ``Adopt`` makes it another trial's training, at the report
        that waits.
        """
        if isinstance(decision, Adopt):
            self._adopt(decision)
        elif isinstance(decision, Resize):
            self._size = self._possible(decision.workers)
            if self._run is not None:
                self._run.resize(self._size)
        elif self._run is not None:
            self._answer(decision)

    def _possible(self, size: int) -> int | None:
        """Return the size that the gang can have which is nearest to ``size``."""
        one = self.spec.reservation
        return None if one.least is None else min(max(size, one.least), max(one.workers, one.most or 0))

    def _answer(self, decision: Decision) -> None:
        assert self._run is not None  # noqa: S101 - there is a trial to answer
        if isinstance(decision, Continue):
            self._until = decision.until
            self._decided = True
        self._run.answer(decision)
        if isinstance(decision, Stop) and self._grown:
            self._run.gang.finish(reason=decision.reason)  # Tune may keep the gang idle: others want what it holds
            self._give_back()

    @property
    def _grown(self) -> bool:
        return self.spec.start is not None and self._gang is not None and self._gang.size > self.spec.start

    def _give_back(self) -> None:
        """Give back, once its trial is over, what the gang holds beyond the size that the next one starts with."""
        if self.spec.start is not None and self._gang is not None and not self._gang.running:
            self._gang.want(self.spec.start)

    # -- one trial on the gang

    def _start(self) -> Run:
        if self._unable is not None:
            raise TrialError(WorkerError(0, os.uname().nodename, "CheckpointError", str(self._unable), ""))
        checkpoints.remove_drafts(self._trial_dir())
        self._recover_number()
        task = Task(
            trial_id=self.trial_id,
            trial_dir=str(self._trial_dir()),
            config=self._config,
            train=self.spec.train,
            seed=trial_seed(self.spec.seed, self.trial_id),
            cwd=self.spec.cwd,
            sys_path=self.spec.sys_path,
            metric=self.spec.metric,
            number=self._number,
            until=self._until,
            resume=self._resume,
            every=self.spec.every,
            every_s=self.spec.every_s,
            share=self.spec.share,
            verbose=self.spec.verbose,
            lent=self.spec.lent,
        )
        if self._gang is None:
            self._gang = Gang(self._gang_spec(), ray.util.get_current_placement_group())
        elif self._gang.unfit is not None:
            self._say(f"a worker is replaced: {self._gang.unfit}")
        run = Run(
            self._gang,
            task,
            self.spec.failures,
            say=self._say,
            keep=self._kept.add,
            newest=self._newest,
            size=self._size,
            leave=reason_to_leave(self._gang),
        )
        self._holding.begin()
        run.start()
        self._run = run
        return run

    def _newest(self, number: int) -> CheckpointInfo | None:
        """Return the last whole checkpoint up to report ``number``, for a trial that starts again.

        The folder knows more than was heard of: a worker that died may have finished one before.
        """
        checkpoints.remove_drafts(self._trial_dir())
        return self._tell(checkpoints.newest_whole(self._trial_dir(), number, self._resume))

    def _recover_number(self) -> None:
        """Find the last whole checkpoint of a trial that starts again in the folder it had."""
        if self._resume is None:
            folder = self._trial_dir()
            self._resume = self._tell(checkpoints.last_whole(folder, checkpoints.heard(folder)))
            if self._resume is not None:
                self._number = self._iteration = self._resume.number
                self._say(f"goes on from its checkpoint of report {self._number}")
            self._kept.forget_after(self._number, self._trial_dir())

    def _gang_spec(self) -> GangSpec:
        reservation, failures = self.spec.reservation, self.spec.failures
        return GangSpec(
            workers=reservation.workers,
            least=reservation.least,
            most=reservation.most,
            cpus_per_worker=reservation.cpus_per_worker,
            gpus_per_worker=reservation.gpus_per_worker,
            resources_per_worker=dict(reservation.resources_per_worker),
            backend=self.spec.backend,
            runtime_env=self.spec.runtime_env,
            first_bundle=reservation.first_bundle,
            on_resize=self.spec.on_resize,
            hang_timeout_s=failures.hang_timeout_s,
            reschedule_timeout_s=failures.reschedule_timeout_s,
            cwd=self.spec.cwd,
            sys_path=self.spec.sys_path,
        )

    def _next_result(self, run: Run) -> dict[str, Any]:
        while True:
            event = run.next_event()
            if isinstance(event, Report):
                return self._reported(event)
            if event is None or not run.running:
                return self._ended(event)

    def _reported(self, report: Report) -> dict[str, Any]:
        self._number = report.number
        self._last = report
        self._decided = self._until is None or report.number < self._until
        result = {
            **report.metrics,
            "epoch": report.epoch,
            "timestamp": report.timestamp,
            TRAINING_ITERATION: report.number,
            RESULT_KEY: self._ours(report),
        }
        astray = self._divergence.judge(report.number, report.metrics) if self.spec.soft_errors else None
        if astray is not None:
            self._answer(Stop("diverged"))
            result[DONE] = True
            error = WorkerError(0, os.uname().nodename, "Divergence", astray, "")
            result[RESULT_KEY]["error"] = {**error.asdict(), "state": "DIVERGED"}
        return result

    def _ended(self, event: Any) -> dict[str, Any]:
        """Say that the trial's last report was its end (no iteration that was never trained)."""
        if self._last is None:
            message = "the trial ended without a report"
            if isinstance(event, Ended) and event.stopped:
                message = "the trial was stopped before its first report"
            if not self._number:
                raise TrialError(head_error(GangError(message)))
        self._kept.prune(self._trial_dir())
        return {RESULT_DUPLICATE: True, DONE: True}

    def _failed(self, error: WorkerError) -> dict[str, Any]:
        """Return the result that ends a failed trial. Raises: TrialError where Tune is to let go of the gang too."""
        self._run = None
        if error.type_name == DRAINED:
            self._close_gang()
            raise moved_away(error)
        if self._gang is not None and not self._gang.met and error.rank < 0:
            self._close_gang()  # it cannot be had: the next trial gets another
            if error.cause != "exception":
                raise TrialError(error)  # Tune may try again, elsewhere
        if not self.spec.soft_errors:
            raise TrialError(error)
        return {
            DONE: True,
            TRAINING_ITERATION: self._number,
            RESULT_KEY: {**self._ours(None), "error": {**masked_error(error.asdict()), "state": classify(error)}},
        }

    def _ours(self, report: Report | None) -> dict[str, Any]:
        """Return what a result carries for tunelight's own driver side."""
        log, self._log = self._log, []
        return {
            "number": self._number,
            "workers": self._gang.size if self._gang is not None else self.spec.reservation.workers,
            "checkpoints": tuple(self._kept.news()),  # tuples: Tune's TensorBoard logger tries to draw lists
            "metrics": report.metrics if report else {},  # Tune overwrites a metric named pid, say
            "notes": tuple(report.notes) if report else (),
            "error": None,
            "warm": self._gang is not None and self._gang.trials > 1,
            "gang": self._holding.news(self._gang),
            "log": tuple(log),
            "adopted": self._told_of_adopting(),
        }

    # -- ends

    def _finish(self, reason: str, limit_s: float | None = None) -> None:
        """Bring the running trial to its end, within a limit."""
        if self._gang is not None and self._gang.running:
            if stores.inside(self._trial_dir()):
                limit_s = stores.PUSH_LIMIT_S
            self._gang.finish(reason=reason, **({} if limit_s is None else {"limit_s": limit_s}))
            with suppress(OSError):  # a store that does not say just now
                self._kept.known = checkpoints.find(self._trial_dir())  # the last was finished meanwhile, or is lost
            self._kept.prune(self._trial_dir())
        self._give_back()
        self._run = None

    def _tell(self, found: tuple[CheckpointInfo | None, str | None]) -> CheckpointInfo | None:
        """Pass on what a search for a whole checkpoint has to say; return the checkpoint."""
        info, warning = found
        if warning is not None:
            self._say(warning)
        return info

    def _close_gang(self) -> None:
        if self._gang is not None:
            self._gang.close()
            self._gang = None

    def _say(self, text: str) -> None:
        logger.warning(text)
        self._log.append(text)

    def _trial_dir(self) -> Path:
        """Return where the trial's files go: its storage if that is a file system path, else Tune's own folder."""
        storage = self._storage
        if storage is not None and (
            storage.storage_filesystem.type_name == "local" or stores.inside(storage.trial_fs_path)
        ):
            return Path(storage.trial_fs_path)
        return Path(self.logdir)


def make_trainable(spec: TrialSpec, name: str = "gang") -> type[GangTrainable]:
    """Return a Trainable class for ``spec``."""
    unique = f"{name}-{secrets.token_hex(3)}"  # Tune knows trainables by name, in all of a process
    return type(unique, (GangTrainable,), {"spec": spec, "__module__": __name__})
