"""Runs a Trainer's fit, validate, test or predict on this rank, and leaves nothing of it behind.

Lightning runs no teardown hooks after an exception, lets a DataLoader's persistent workers live when
training stops inside validation, and tells loggers "failed" of a trial that was merely stopped. This
launcher adds what is missing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tunelight.compat.lightning import TensorBoardLogger, TrainerFn, _Launcher, _TunerExitException, call, pl
from tunelight.errors import TrialStopped
from tunelight.lightning.state.recovery import recovery_of
from tunelight.session.session import Session


class GangLauncher(_Launcher):
    """Launches nothing: the gang's workers run already, and each calls this for itself. Runs on: worker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def is_interactive_compatible(self) -> bool:
        """Say that notebooks are fine."""
        return True

    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        """Run ``function`` here; clean up what Lightning leaves when it is stopped or fails."""
        if trainer is None:
            return function(*args, **kwargs)
        for logger in trainer.loggers:
            vars(logger).pop("finalize", None)  # a run before this one may have ended in an exception
        if not self._session.task.job:
            _leave_hparams_to_the_sweep(trainer)
        recovery = None
        if trainer.state.fn == TrainerFn.FITTING:
            self._session.progress.fit += 1
            args, kwargs = self._resumed(function, args, kwargs)
            recovery = recovery_of(trainer)
            if recovery is not None:
                recovery.install(trainer)
        try:
            return function(*args, **kwargs)
        except _TunerExitException:
            raise  # Lightning's own way out of its tuner: it goes on to the real fit
        except BaseException as error:
            _clean_up(trainer, "stopped" if isinstance(error, TrialStopped) else "failed")
            raise
        finally:
            if recovery is not None:
                recovery.uninstall(trainer)

    def _resumed(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give ``fit`` the trial's own checkpoint, once it has one; the user's ``ckpt_path`` is for the first start."""
        path = self._session.checkpoint_for_fit()
        if path is None:
            return args, kwargs
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        if "ckpt_path" not in bound.arguments:
            return args, kwargs
        given = bound.arguments["ckpt_path"]
        if given is not None and str(given) != path and not self._session.task.job:  # a job names its own checkpoint
            self._session.note(
                f"fit(ckpt_path={str(given)!r}) is for the trial's first start: it has trained since, and goes on from "
                f"its own checkpoint of report {self._session.context.number}."
            )
        bound.arguments["ckpt_path"] = path
        if bound.arguments.get("weights_only") is None and "weights_only" in bound.arguments:
            bound.arguments["weights_only"] = False  # tunelight wrote it: it holds hyperparameters too
        return bound.args, bound.kwargs

    def kill(self, signum: int) -> None:
        """Do nothing: the head ends workers."""


def _leave_hparams_to_the_sweep(trainer: pl.Trainer) -> None:
    """Keep Lightning's default logger from writing a second set of HParams beside the sweep's own.

    TensorBoard shows the columns of one set only, whichever it reads first.
    """
    for logger in trainer.loggers:
        if type(logger) is TensorBoardLogger and logger.name == "lightning_logs":
            logger._default_hp_metric = False


def _clean_up(trainer: pl.Trainer, status: str) -> None:
    """Do for an interrupted run what Lightning does for a finished one."""
    steps: list[Callable[[], object]] = [lambda: _teardown_hooks(trainer)]
    steps += [functools.partial(_close, loop) for loop in _loops(trainer)]
    steps += [functools.partial(logger.finalize, status) for logger in trainer.loggers]
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the first error is the one that counts
            print(f"tunelight: while cleaning up after a trial: {type(error).__name__}: {error}")  # noqa: T201
    for logger in trainer.loggers:
        logger.finalize = _finalized  # type: ignore[method-assign]  # Lightning would call it "failed" again


def _finalized(status: str) -> None:
    """Stand in for ``finalize`` of a logger that is finalized."""


def _teardown_hooks(trainer: pl.Trainer) -> None:
    fn = trainer.state.fn
    if fn is None:
        return
    if getattr(trainer, "datamodule", None) is not None:
        call._call_lightning_datamodule_hook(trainer, "teardown", stage=fn)
    call._call_callback_hooks(trainer, "teardown", stage=fn)
    call._call_lightning_module_hook(trainer, "teardown", stage=fn)


def _loops(trainer: pl.Trainer) -> list[Any]:
    """Return the loops that read data; a loop comes before those that run in it."""
    fit = trainer.fit_loop
    return [fit, fit.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop]


def _close(loop: Any) -> None:
    """End a loop's run, and shut down the worker processes of its data fetcher.

    The fetcher asks for the loader's length when it is torn down, which an emptied loader does not know: Lightning
    would raise that later, in the place of the error that ended the run.
    """
    try:
        loop.teardown()
    finally:
        combined = getattr(loop, "_combined_loader", None)
        if combined is not None:
            combined.reset()
