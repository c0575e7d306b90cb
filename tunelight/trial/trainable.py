"""GangTrainable: translates between a trial of Ray Tune and a gang of workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray.exceptions import RayActorError

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import (
    DONE,
    RESULT_DUPLICATE,
    SHOULD_CHECKPOINT,
    TRAINING_ITERATION,
    nothing_saved,
    passed_to_head,
)
from tunelight.errors import GangError, TrialError
from tunelight.gang.gang import STOP_LIMIT_S, Gang
from tunelight.gang.orders import DRAINED, make_leave_check
from tunelight.gang.parcel import with_parameters
from tunelight.gang.run import head_error
from tunelight.machine.processes import collector_resting
from tunelight.messages import (
    RESULT_KEY,
    Adopt,
    Continue,
    Decision,
    Ended,
    Report,
    Resize,
    Stop,
    WorkerError,
)
from tunelight.policies import classify
from tunelight.stores import store_of
from tunelight.stores.masking import masked_error
from tunelight.trial.trial import Trial, TrialSpec

with collector_resting():  # a trial's head waits for this before its workers start
    from ray.tune import PlacementGroupFactory, Trainable


_END_S = 0.2
"""How long reports are held back for the end of their trial, once rank 0 has ended."""
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""How long a head waits before it asks a store again that has not answered."""
_LAST_LIMIT_S = 5.0
"""How long a trial may take to end where its head ends too, the writing of a checkpoint not counted."""


class GangTrainable(Trainable):
    """A Tune trial whose training runs on a gang. Made by :func:`make_trainable`. Runs on: trial.

    The gang's workers start with the first step. It outlives the trial when Tune re-uses this actor, and is replaced
    when it cannot be used again.
    """

    spec: ClassVar[TrialSpec]

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the reservation of head and workers."""
        return cls.spec.gang.reservation.factory

    # -- Tune's calls, in the order in which they come

    def setup(self, config: dict[str, Any], **parameters: Any) -> None:
        """Prepare the first trial. Its workers start later, because Tune may discard this actor unused.

        ``parameters``: of Ray's ``tune.with_parameters``; the train function gets them by name.
        """
        if parameters:
            task = replace(self.spec.task, train=with_parameters(self.spec.task.train, parameters))
            self.spec = replace(self.spec, task=task)  # type: ignore[misc]
        self._gang = self._new_gang()
        self._trial = self._new_trial(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial. Always returns True: errors are raised by ``step``, where Tune can handle them."""
        self._finish()
        self._trial = self._new_trial(new_config)
        return True

    def _new_gang(self) -> Gang:
        return Gang(self.spec.gang, ray.util.get_current_placement_group())

    def _new_trial(self, config: dict[str, Any]) -> Trial:
        return Trial(self.spec, self.trial_id, self._trial_dir(), config, **passed_to_head(self._storage))

    def _trial_dir(self) -> Path:
        """Return the folder of the trial that Tune has set last: in Tune's storage, if that is a path, else its logdir.

        Called for new trials only: Tune sets the next trial while the one before may not have ended.
        """
        storage = self._storage
        if storage is not None and (storage.storage_filesystem.type_name == "local" or store_of(storage.trial_fs_path)):
            return Path(storage.trial_fs_path)
        return Path(self.logdir)

    def restore(self, *given: Any, **named: Any) -> Any:
        """Restore what Tune has kept; a store that does not answer is asked again for about a minute.

        Tune would make another head at once, and count a failure.
        """
        for pause_s in _PAUSES_S:
            with suppress(OSError):
                return super().restore(*given, **named)
            time.sleep(pause_s)
        return super().restore(*given, **named)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Resume from what ``save_checkpoint`` wrote."""
        trial = self._trial
        trial.load(checkpoint if isinstance(checkpoint, str | os.PathLike) else None, self._iteration)
        self._iteration = trial.number

    def train(self) -> Any:
        """Return the trial's next report, or its end; a list where reports that need no answer, or the end, follow.

        Tune takes the results of a list one by one, and costs as much for all of them as for one.
        """
        self._trial.kept.taken = self._trial.number  # Tune has the last report now
        self._trial.prune()
        train: Callable[[], dict[str, Any]] = super().train
        results = [train()]
        while self.spec.of_sweep and not results[-1][DONE] and self._trial.has_more(_END_S):
            results.append(train())
        return results if len(results) > 1 else results[0]

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> Any:
        """Return what ``train`` does, which gathers reports itself. Called by Tune where its own buffer is set."""
        return self.train()

    def step(self) -> dict[str, Any]:
        """Return the trial's next report; or its end."""
        trial = self._trial
        trial.pausing = False
        try:
            if trial.started:
                trial.resize_if_due()
                if trial.waits:
                    trial.answer(Continue(until=trial.number + 1))
            else:
                self._start()
            while not isinstance(event := trial.next_event(), Report):
                if event is None or not trial.running:
                    return self._ended(event)
            return self._reported(event)
        except TrialError as error:
            return self._failed(error.error)
        finally:
            self._give_back()

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Save a checkpoint as Tune does; at the end of a trial only if Tune has not got its last one yet."""
        trial = self._trial
        info = trial.resume
        ended = trial.started and not trial.training
        if self.spec.task.passes_on and ended and (info is None or info.number == trial.passed):
            return nothing_saved(self._last_result or {})
        if info is None and not (trial.savable or self.spec.task.passes_on):
            return nothing_saved(self._last_result or {})  # which no other trial takes over
        return super().save(checkpoint_dir)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write to ``checkpoint_dir`` a pointer to the trial's newest checkpoint, which is written now if need be.

        Under plain Tune the checkpoint itself is copied there. A gang that can be resized ends the trial here: Tune
        calls this before a pause, when other trials need the gang's additional workers.
        """
        trial = self._trial
        trial.pausing = not self.spec.task.passes_on
        info = trial.save()
        checkpoints.write_pointer(checkpoint_dir, info)
        if info is not None and not self.spec.of_sweep:
            checkpoints.copy_into(info, checkpoint_dir)
            trial.passed = info.number
        if info is not None and self.spec.start is not None:
            self._finish()  # if Tune does not pause it after all, it starts again from there

    def cleanup(self) -> None:
        """End the trial and the gang."""
        with suppress(Exception):
            self._finish(_LAST_LIMIT_S)
        self._gang.close()

    # -- calls from schedulers

    def decide(self, decision: Decision | Resize) -> None:
        """Carry out a decision that Tune's interface cannot express, between two steps.

        ``Continue(until=n)`` lets the trial train to report n without an answer; ``Stop`` ends it at its next report,
        before Tune does; ``Resize(n)`` lets it train on with n workers, as soon as all of them are there; ``Adopt``
        replaces its training by another trial's, at the report that waits. Nobody waits for the call: its error is that
        of the next step.
        """
        trial = self._trial
        try:
            if isinstance(decision, Adopt):
                trial.adopt(decision)
            elif isinstance(decision, Resize):
                trial.resize(self.spec.gang.reservation.nearest(decision.workers))
            elif trial.started:
                self._answer(decision)
        except Exception as error:  # noqa: BLE001 - a store that does not answer, say
            trial.fail(error)

    def offer(self) -> tuple[Any, ...]:
        """Return a reference to the training's state at the report that waits, in a tuple; () without a state.

        The reference is passed on without being resolved.
        """
        weights = self._trial.offer()
        return () if weights is None else (weights,)

    def _answer(self, decision: Decision) -> None:
        self._trial.answer(decision)
        if isinstance(decision, Stop) and self.spec.start is not None and self._gang.size > self.spec.start:
            self._trial.finish(decision.reason)  # Tune may keep the gang idle, and others need its workers
            self._give_back()

    def _give_back(self) -> None:
        """Release the gang's workers beyond those that the next trial starts with, once its trial is over."""
        if self.spec.start is not None and not self._gang.running:
            self._gang.want(self.spec.start)

    # -- one trial on the gang

    def _start(self) -> None:
        trial, gang = self._trial, self._gang
        trial.recover()
        self._iteration = trial.number
        if gang.unfit is not None:
            trial.say(f"a worker is replaced: {gang.unfit}")
        trial.start(gang, None if self.spec.of_sweep else make_leave_check(gang))  # a driver of tunelight's tells

    def _reported(self, report: Report) -> dict[str, Any]:
        trial = self._trial
        trial.savable = report.savable
        result = {
            **report.metrics,
            "epoch": report.epoch,
            "timestamp": report.timestamp,
            TRAINING_ITERATION: report.number,
            RESULT_KEY: self._extras(report),
        }
        if report.checkpoint is not None and self.spec.task.passes_on:
            result[SHOULD_CHECKPOINT] = True
        diverged = trial.divergence.judge(report.number, report.metrics) if self.spec.of_sweep else None
        if diverged is not None:
            self._answer(Stop("diverged"))
            result[DONE] = True
            error = WorkerError(0, os.uname().nodename, "Divergence", diverged, "")
            result[RESULT_KEY]["error"] = {**error.asdict(), "state": "DIVERGED"}
        return result

    def _ended(self, event: Any) -> dict[str, Any]:
        """Return the result that ends the trial with its last report, without another iteration."""
        trial = self._trial
        stopped = isinstance(event, Ended) and event.stopped
        if not trial.number and (stopped or self.spec.task.must_report):
            message = "the trial was stopped before its first report" if stopped else "the trial ended without a report"
            error = head_error(GangError(message))
            if not stopped or not self.spec.of_sweep:
                raise TrialError(error)
            return self._over(error, "STOPPED")
        return {RESULT_DUPLICATE: True, DONE: True}

    def _failed(self, error: WorkerError) -> dict[str, Any]:
        """Return the result that ends a failed trial. Raises: TrialError where Tune has to end the gang as well."""
        self._trial.end()
        if error.type_name == DRAINED:
            self._replace_gang()
            raise RayActorError(error_msg=error.message, preempted=True)  # Tune restarts it, and counts no failure
        if not self._gang.met and error.rank < 0:
            self._replace_gang()  # it could not start: the next trial gets another
            if error.cause != "exception":
                raise TrialError(error)  # Tune may retry on other nodes
        if not self.spec.of_sweep:
            raise TrialError(error)
        return self._over(error, classify(error))

    def _over(self, error: WorkerError, state: str) -> dict[str, Any]:
        """Return the result that ends a trial in a state, with its error."""
        outcome = {**self._extras(None), "error": {**masked_error(error.asdict()), "state": state}}
        return {DONE: True, TRAINING_ITERATION: self._trial.number, RESULT_KEY: outcome}

    def _extras(self, report: Report | None) -> dict[str, Any]:
        """Return the part of a result that tunelight's callbacks on the driver read."""
        trial = self._trial
        return {
            "seconds": trial.seconds or 0.0,
            "compiled": report.compiled if report else 0,
            "workers": self._gang.size or self.spec.gang.reservation.workers,
            "checkpoints": tuple(trial.kept.drain()),  # a tuple: Tune's TensorBoard logger would draw lists
            "metrics": report.metrics if report else {},  # Tune overwrites a metric named pid, say
            "notes": (*trial.drain(), *(report.notes if report else ())),
            "error": None,
            "gang": trial.describe_gang(),
            "adopted": trial.adoption(),
            "pausable": trial.savable or self.spec.task.passes_on or trial.resume is not None,
        }

    # -- ends

    def _finish(self, limit_s: float = STOP_LIMIT_S) -> None:
        """End the running trial, within a limit."""
        self._trial.end("paused" if self._trial.pausing else "stopped", limit_s)
        self._give_back()

    def _replace_gang(self) -> None:
        self._gang.close()
        self._gang = self._new_gang()


def make_trainable(spec: TrialSpec) -> type[GangTrainable]:
    """Return a Trainable class for ``spec``. Tune registers it by its name in a process, and restores by that name."""
    return type(spec.name, (GangTrainable,), {"spec": spec, "__module__": __name__})
