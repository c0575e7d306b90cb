"""GangTrainable: one Tune trial holds one gang. It translates between the two, and loops over nothing."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import ray

from tunelight import checkpoints
from tunelight.errors import CheckpointError, GangError, TrialError
from tunelight.gang.gang import Gang, GangSpec
from tunelight.imports import collector_resting
from tunelight.messages import (
    RESULT_KEY,
    CheckpointInfo,
    Continue,
    Decision,
    Ended,
    Report,
    Stop,
    Task,
    WorkerError,
    Wrote,
)
from tunelight.policies import Divergence, FailureDecision, classify
from tunelight.resources import reserve
from tunelight.trial import TrialSpec, trial_seed

with collector_resting():  # a trial's head waits for this before its workers start
    from ray.tune import PlacementGroupFactory, Trainable
    from ray.tune.result import DONE, RESULT_DUPLICATE, TRAINING_ITERATION

logger = logging.getLogger(__name__)


class GangTrainable(Trainable):
    """A Tune trial whose training runs on a gang. Make one with :func:`gang_trainable`. Runs on: trial.

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
        self._started = False
        self._failures = 0
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
        if self._resume is not None:
            self._resume = self._tell(checkpoints.whole_or_before(self._resume))
            self._number = self._iteration = self._resume.number if self._resume else 0
        self._kept.forget_after(self._number, self._trial_dir())
        if self._resume is None and self._number:
            raise CheckpointError(
                f"Trial {self.trial_id} was paused at report {self._number} without a checkpoint, so it cannot "
                "go on. Use tunelight.TuneReportCheckpointCallback, or a scheduler that does not pause."
            )

    def step(self) -> dict[str, Any]:
        """Return the trial's next report; or its end."""
        self._kept.prune(self._trial_dir())  # Tune has the report before: what that made needless may go
        while True:
            try:
                if not self._started:
                    self._start()
                elif not self._decided:
                    self._answer(Continue(until=self._number + 1))
                return self._next_result()
            except GangError as error:
                self._discard(str(error))
                failure = _head_error(error)
            except TrialError as error:
                failure = error.error
            result = self._failed(failure)
            if result is not None:
                return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Leave in ``checkpoint_dir`` a pointer to the trial's newest checkpoint, written now if need be.

        Under plain Tune (``real_checkpoints``) the file itself lies beside it.
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

    def cleanup(self) -> None:
        """End the trial and the gang."""
        with suppress(Exception):
            self._finish("stopped", limit_s=5.0)
        self._close_gang()

    # -- the scheduler's door

    def decide(self, decision: Decision) -> None:
        """Take a decision that Tune has no word for, between two steps.

        ``Continue(until=n)`` lets the trial run on unasked to report n; ``Stop`` ends it at its next report,
        before Tune comes to say so.
        """
        if self._started:
            self._answer(decision)

    def _answer(self, decision: Decision) -> None:
        assert self._gang is not None  # noqa: S101 - started means that there is one
        if isinstance(decision, Continue):
            self._until = decision.until
            self._decided = True
        self._gang.answer(decision)

    # -- one trial on the gang

    def _start(self) -> None:
        gang = self._fit_gang()
        checkpoints.remove_drafts(self._trial_dir())
        self._recover_number()
        until = self._until if self._until is None else max(self._until, self._number + 1)
        self._until = until
        gang.start(
            Task(
                trial_id=self.trial_id,
                trial_dir=str(self._trial_dir()),
                config=self._config,
                train=self.spec.train,
                seed=trial_seed(self.spec.seed, self.trial_id),
                cwd=self.spec.cwd,
                sys_path=self.spec.sys_path,
                metric=self.spec.metric,
                number=self._number,
                until=until,
                resume=self._resume,
                every=self.spec.every,
                every_s=self.spec.every_s,
                share=self.spec.share,
                verbose=self.spec.verbose,
            )
        )
        self._started = True

    def _recover_number(self) -> None:
        """Find the last whole checkpoint of a trial that starts again in the folder it had."""
        if self._resume is None:
            self._resume = self._tell(checkpoints.last_whole(self._trial_dir()))
            if self._resume is not None:
                self._number = self._iteration = self._resume.number
                self._say(f"goes on from its checkpoint of report {self._number}")
            self._kept.forget_after(self._number, self._trial_dir())

    def _fit_gang(self) -> Gang:
        """Return a gang that is fit for a trial: the warm one, healed if need be, or a new one."""
        if self._gang is not None:
            if self._gang.unfit is None:
                try:
                    self._gang.heal()
                except GangError as error:
                    self._discard(str(error))
            else:
                self._discard(self._gang.unfit)
        if self._gang is None:
            reservation = self.spec.reservation
            spec = GangSpec(
                workers=reservation.workers,
                cpus_per_worker=reservation.cpus_per_worker,
                gpus_per_worker=reservation.gpus_per_worker,
                resources_per_worker=dict(reservation.resources_per_worker),
                backend=self.spec.backend,
                runtime_env=self.spec.runtime_env,
                first_bundle=reservation.first_bundle,
                cwd=self.spec.cwd,
                sys_path=self.spec.sys_path,
            )
            self._gang = Gang.form(spec, ray.util.get_current_placement_group())
        return self._gang

    def _next_result(self) -> dict[str, Any]:
        gang = self._gang
        assert gang is not None  # noqa: S101
        while True:
            event = gang.next_event()
            if isinstance(event, Report):
                return self._reported(event)
            if isinstance(event, Wrote):
                self._wrote(event)
            elif isinstance(event, Ended) and event.error is not None:
                raise TrialError(gang.fail(event.error))
            elif event is None or not gang.running:
                return self._ended(event)

    def _reported(self, report: Report) -> dict[str, Any]:
        self._number = report.number
        self._last = report
        self._decided = self._until is None or report.number < self._until
        if report.checkpoint is not None:
            self._kept.add(report.checkpoint)
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
                raise TrialError(_head_error(GangError(message)))
        self._kept.prune(self._trial_dir())
        return {RESULT_DUPLICATE: True, DONE: True}

    def _failed(self, error: WorkerError) -> dict[str, Any] | None:
        """Return the result that ends a failed trial; None if it is to be tried again."""
        self._failures += 1
        if self.spec.failures.decide(error, self._failures) is FailureDecision.RETRY:
            self._say(f"failed on rank {error.rank} ({error.type_name}: {error.message}); trying again")
            time.sleep(self.spec.failures.delay_s(self._failures))
            self._started = False
            self._resume = self._tell(checkpoints.newest_whole(self._trial_dir(), self._number, self._resume))
            self._number = self._iteration = self._resume.number if self._resume else 0
            self._until = self.spec.first.until
            return None
        if not self.spec.soft_errors:
            raise TrialError(error)
        return {
            DONE: True,
            TRAINING_ITERATION: self._number,
            RESULT_KEY: {**self._ours(None), "error": {**error.asdict(), "state": classify(error)}},
        }

    def _ours(self, report: Report | None) -> dict[str, Any]:
        """Return what a result carries for tunelight's own driver side."""
        log, self._log = self._log, []
        return {
            "number": self._number,
            "workers": self.spec.reservation.workers,
            "checkpoints": self._kept.news(),
            "metrics": report.metrics if report else {},  # Tune overwrites a metric named pid, say
            "notes": list(report.notes) if report else [],
            "error": None,
            "warm": self._gang is not None and self._gang.trials > 1,
            "log": log,
        }

    # -- ends

    def _finish(self, reason: str, limit_s: float | None = None) -> None:
        """Bring the running trial to its end, within a limit."""
        if self._gang is not None and self._gang.running:
            self._gang.finish(reason=reason, **({} if limit_s is None else {"limit_s": limit_s}))
            self._kept.known = checkpoints.find(self._trial_dir())  # the last was finished meanwhile, or is lost
            self._kept.prune(self._trial_dir())
        self._started = False

    def _wrote(self, event: Wrote) -> None:
        if event.checkpoint is not None:
            self._kept.add(event.checkpoint)
        if event.note is not None:
            self._say(event.note)

    def _tell(self, found: tuple[CheckpointInfo | None, str | None]) -> CheckpointInfo | None:
        """Pass on what a search for a whole checkpoint has to say; return the checkpoint."""
        info, warning = found
        if warning is not None:
            self._say(warning)
        return info

    def _discard(self, reason: str) -> None:
        self._say(f"gang discarded: {reason}")
        self._close_gang()

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
        if storage is not None and storage.storage_filesystem.type_name == "local":
            return Path(storage.trial_fs_path)
        return Path(self.logdir)


def _head_error(error: Exception) -> WorkerError:
    return WorkerError(-1, os.uname().nodename, type(error).__name__, str(error), "", cause="unresponsive")


def make_trainable(spec: TrialSpec, name: str = "gang") -> type[GangTrainable]:
    """Return a Trainable class for ``spec``."""
    unique = f"{name}-{secrets.token_hex(3)}"  # Tune knows trainables by name, in all of a process
    return type(unique, (GangTrainable,), {"spec": spec, "__module__": __name__})


def gang_trainable(
    train: Callable[[dict[str, Any]], object],
    *,
    workers: int | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    resources_per_trial: Mapping[str, Any] | None = None,
    backend: Literal["ddp", "horovod", "sharded"] = "ddp",
    metric: str | None = None,
    mode: Literal["min", "max"] = "min",
    keep: int = 1,
    seed: int = 0,
) -> type[GangTrainable]:
    """Return a Trainable class that plain ``ray.tune.Tuner`` can run: each trial trains on a gang of workers.

    Args:
        train: the train function; it runs on every worker, with the trial's config.
        workers, cpus_per_worker, gpus_per_worker, resources_per_trial: the reservation, as in ``tunelight.run``.
        backend: how the workers meet, as in ``tunelight.run``.
        metric, mode, keep: how many of the best checkpoints to keep beside the last two, judged by what.
        seed: of the sweep; each trial's seed follows from it and its number.

    Give the Tuner ``TuneConfig(reuse_actors=True)`` to keep gangs warm from trial to trial.
    Raises: TrainFunctionError, SettingsError. Runs on: driver.
    """
    from tunelight.settings import Checkpoints, check_picklable, check_setting, check_train  # noqa: PLC0415

    check_train(train)
    for name, value in (("backend", backend), ("mode", mode), ("metric", metric), ("seed", seed)):
        check_setting(name, value)
    Checkpoints(keep=keep)
    spec = TrialSpec(
        train=check_picklable(train, "train"),
        reservation=reserve(workers, cpus_per_worker, gpus_per_worker, resources_per_trial),
        backend=backend,
        metric=metric,
        mode=mode,
        seed=seed,
        keep=keep,
    )
    return make_trainable(spec, getattr(train, "__name__", "gang"))
