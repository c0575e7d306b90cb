"""Runs a Trainer's fit, validate, test or predict on a rank, and cleans up after it.

After an exception Lightning runs no teardown hooks, and keeps a DataLoader's persistent workers when training stopped
inside validation. A trial that is stopped ends by an exception, too, which Lightning would call a failure; callbacks,
data module and loggers see the end of training in its place, as they do after early stopping.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tunelight.compat import replaced
from tunelight.compat.lightning import (
    BatchSizeFinder,
    Callback,
    LearningRateFinder,
    RunningStage,
    TensorBoardLogger,
    TrainerFn,
    _Launcher,
    _TunerExitException,
    call,
    pl,
)
from tunelight.errors import TrialStopped
from tunelight.lightning.state import loggers
from tunelight.lightning.state.recovery import Reporting, end_training, recovery_of
from tunelight.messages import FAILED, GOES_ON
from tunelight.session.session import Session


class GangLauncher(_Launcher):
    """Runs a Trainer in this process, which is a worker of the gang already. Runs on: worker.

    ``original``: the launcher of a strategy of Lightning's.
    """

    def __init__(self, session: Session, original: _Launcher | None = None) -> None:
        self._session, self._own = session, original

    @property
    def is_interactive_compatible(self) -> bool:
        """Return True: it works in notebooks."""
        return True

    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        """Run ``function`` in this process; clean up if it is stopped or fails."""
        if trainer is None:
            return function(*args, **kwargs)
        give_back(trainer)  # the run before may have ended in an exception
        if not self._session.task.job:
            _leave_hparams_to_the_sweep(trainer)
            loggers.keep_checkpoints_apart(trainer, self._session.context)
        recovery = None
        checkpoint = None
        inner = self._session.within_fit(trainer)  # then it is no fit of the trial, and not given its checkpoint
        if trainer.state.fn == TrainerFn.FITTING:
            callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
            tuning = any(isinstance(cb, BatchSizeFinder | LearningRateFinder) and cb._early_exit for cb in callbacks)
            if not (tuning or inner):
                args, kwargs, checkpoint = self._begun(trainer, function, args, kwargs)
            recovery = recovery_of(trainer)
            if recovery is not None:
                recovery.install(trainer, resumes=checkpoint is not None, tuning=tuning)
        try:
            with _known_rate(trainer) if checkpoint is not None else contextlib.nullcontext():
                if self._own is not None:
                    return self._own.launch(function, *args, trainer=trainer, **kwargs)
                return function(*args, **kwargs)
        except _TunerExitException:
            raise  # Lightning leaves its tuner by it and continues with the fit
        except BaseException as error:
            with replaced(self._session, ending=True):  # which hooks of the user's may take long over
                _clean_up(trainer, error)
            raise
        finally:
            if not inner:
                self._session.boundary.end_fit()
            if recovery is not None:
                recovery.uninstall(trainer)

    def _begun(
        self, trainer: pl.Trainer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], str | None]:
        """Begin a fit; return its arguments, and the trial's checkpoint if the fit continues from it.

        That replaces ``ckpt_path``: the user's is for the trial's first start.
        """
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given, resume = bound.arguments.get("ckpt_path"), self._session.start.resume
        asked = resume is not None and str(given) == resume.path
        self._session.boundary.begin_fit(trainer, asked=asked)
        path = self._session.checkpoint_for_fit()
        if path is None or "ckpt_path" not in bound.arguments:
            return args, kwargs, None
        if given is not None and str(given) != path and not self._session.task.job:  # a job names its own checkpoint
            self._session.note(
                f"fit(ckpt_path={str(given)!r}) is for the trial's first start: it has trained since, and continues "
                f"from its own checkpoint of report {self._session.context.number}."
            )
        bound.arguments["ckpt_path"] = path
        if bound.arguments.get("weights_only") is None and "weights_only" in bound.arguments:
            bound.arguments["weights_only"] = False  # tunelight wrote it, and it holds hyperparameters too
        return bound.args, bound.kwargs, path

    def kill(self, signum: int) -> None:
        """Do nothing: the head ends its workers."""


def launch_by_gang(session: Session, frame: FrameType | None) -> None:
    """Let the Trainer that is made in a frame of a trial of one worker go on from the trial's checkpoints.

    It may have a strategy of Lightning's. Lightning does not say for which Trainer it asks for callbacks.
    """
    trainer = None
    while frame is not None and not isinstance(trainer := frame.f_locals.get("self"), pl.Trainer):
        frame = frame.f_back
    if not isinstance(trainer, pl.Trainer) or session.context.wanted > 1:
        return
    strategy: Any = trainer.strategy
    launcher = strategy._launcher
    if isinstance(launcher, GangLauncher) and launcher._session is not session:
        launcher = launcher._own  # of an earlier trial, whose strategy this process still has
    if not isinstance(launcher, GangLauncher):
        strategy._launcher = GangLauncher(session, launcher)


@contextlib.contextmanager
def _known_rate(trainer: pl.Trainer) -> Iterator[None]:
    """Keep LearningRateFinder from searching again: the checkpoint has the rate, which its search would replace."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning's, set elsewhere
    finders = [callback for callback in callbacks if isinstance(callback, LearningRateFinder)]
    for finder in finders:
        vars(finder)["on_fit_start"] = lambda *_: None
    try:
        yield
    finally:
        for finder in finders:
            vars(finder).pop("on_fit_start", None)


def _leave_hparams_to_the_sweep(trainer: pl.Trainer) -> None:
    """Keep Lightning's default logger from writing HParams that TensorBoard would show in place of the sweep's."""
    for logger in trainer.loggers:
        if type(logger) is TensorBoardLogger and logger.name == "lightning_logs":
            logger._default_hp_metric = False


SUCCESS, REQUEUED, FAILURE = "success", "finished", "failed"
"""The words by which Lightning finalizes loggers: after a run, before it is queued again, and after an exception."""


def _word(error: BaseException) -> str:
    """Return the word for a run that an exception has ended."""
    if not isinstance(error, TrialStopped) or str(error).startswith(FAILED):
        return FAILURE
    return REQUEUED if str(error) in GOES_ON else SUCCESS


def _clean_up(trainer: pl.Trainer, error: BaseException) -> None:
    """Clean up after an interrupted run as Lightning does after a finished one; a stopped fit ends its training.

    Callbacks, data module and loggers hear of an error before that, in Lightning's order.
    """
    word, stopped = _word(error), isinstance(error, TrialStopped)
    training = trainer.state.stage in (RunningStage.TRAINING, RunningStage.VALIDATING)
    first: list[Callable[[], object]] = [] if stopped else [lambda: _exception_hooks(trainer, error)]
    if word == SUCCESS and training and trainer.state.fn == TrainerFn.FITTING:
        first = [functools.partial(_train_end, trainer), functools.partial(_fit_end, trainer)]
    fit = trainer.fit_loop
    loops = (fit, fit.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
    ends: list[Callable[[], object]] = [lambda: _teardown_hooks(trainer)]
    ends += [functools.partial(_close, loop) for loop in loops]
    finalize: list[Callable[[], object]] = [functools.partial(logger.finalize, word) for logger in trainer.loggers]
    for step in [*first, *ends, *finalize] if stopped else [*first, *finalize, *ends]:
        try:
            step()
        except (Exception, TrialStopped) as later:  # noqa: BLE001 - the first error is the one that counts
            print(f"tunelight: while cleaning up after a trial: {type(later).__name__}: {later}")  # noqa: T201
    hold(trainer, Callback, loggers=True)


def _train_end(trainer: pl.Trainer) -> None:
    """End the training of a fit, at the report at which it was stopped: nothing is reported any more."""
    if trainer.validating:
        trainer.fit_loop.epoch_loop.val_loop._on_evaluation_model_train()
        trainer.training = True
    with _without_reports(trainer):
        end_training(trainer)


def _fit_end(trainer: pl.Trainer) -> None:
    recovery = recovery_of(trainer)
    with _without_reports(trainer):
        if recovery is None or recovery.ending != "on_fit_end":
            call._call_callback_hooks(trainer, "on_fit_end")
        call._call_lightning_module_hook(trainer, "on_fit_end")


def _without_reports(trainer: Any) -> contextlib.AbstractContextManager[None]:
    return replaced(trainer, callbacks=[each for each in trainer.callbacks if not isinstance(each, Reporting)])


def hold(trainer: Any, kind: type[Callback], *, loggers: bool) -> None:
    """Keep Lightning from taking some through the exception in which a run has ended; :func:`give_back` undoes it.

    ``kind``: callbacks of that class are left out, and with all of them the data module. ``loggers``: these are
    finalized already. What Lightning does next is `call._interrupt`: the strategy, which it calls after callbacks and
    data module, gives them back.
    """
    for logger in trainer.loggers if loggers else ():
        logger.finalize = lambda _: None
    strategy, callbacks, data = trainer.strategy, trainer.callbacks, trainer.datamodule

    def on_exception(_: object) -> None:
        del strategy.on_exception
        trainer.callbacks, trainer.datamodule = callbacks, data

    strategy.on_exception = on_exception
    trainer.callbacks = [callback for callback in callbacks if not isinstance(callback, kind)]
    trainer.datamodule = None if kind is Callback else data


def give_back(trainer: Any) -> None:
    """Undo :func:`hold`, also where Lightning did not come to the strategy, for a callback has raised."""
    for logger in trainer.loggers:
        vars(logger).pop("finalize", None)
    if (on_exception := vars(trainer.strategy).get("on_exception")) is not None:
        on_exception(None)


def _exception_hooks(trainer: pl.Trainer, error: BaseException) -> None:
    trainer.state.status = type(trainer.state.status).INTERRUPTED
    call._call_callback_hooks(trainer, "on_exception", error)
    if getattr(trainer, "datamodule", None) is not None:
        call._call_lightning_datamodule_hook(trainer, "on_exception", error)
    trainer.strategy.on_exception(error)


def _teardown_hooks(trainer: pl.Trainer) -> None:
    fn = trainer.state.fn
    if fn is None:
        return
    if getattr(trainer, "datamodule", None) is not None:
        call._call_lightning_datamodule_hook(trainer, "teardown", stage=fn)
    call._call_callback_hooks(trainer, "teardown", stage=fn)
    call._call_lightning_module_hook(trainer, "teardown", stage=fn)


def _close(loop: Any) -> None:
    """End a loop's run, and shut down the worker processes of its data fetcher.

    The fetcher reads the loader's length when it is torn down; an emptied loader has none, and Lightning would raise
    that later in place of the run's own error.
    """
    try:
        loop.teardown()
    finally:
        combined = getattr(loop, "_combined_loader", None)
        if combined is not None:
            combined.reset()
