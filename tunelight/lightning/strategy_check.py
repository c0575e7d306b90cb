"""Refuses Trainers that would train every rank for itself.

Every Trainer made inside a trial gets a callback that checks its strategy, and another that makes it recover.
Lightning finds both through `tunelight.lightning.guard`.
"""

from __future__ import annotations

import sys
from typing import Any

from tunelight.compat.lightning import HOW_TO_CHOOSE, Flavour, flavour, flavour_of, gang_strategy, take_interrupts
from tunelight.errors import StrategyError
from tunelight.session.session import Context, Session
from tunelight.settings.backends import BACKENDS


def guard_callbacks(session: Session, package: Flavour) -> list[Any]:
    """Return guard and recovery for a trial's Trainer; one of another package than the gang's has the guard alone."""
    callbacks = sys.modules[f"{package}.callbacks"]
    take_interrupts(package)

    class Guard(callbacks.Callback):  # type: ignore[misc, name-defined]  # of either package
        """Checks the Trainer's strategy, counts its batches, and disables progress bars, which nobody sees."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            check_strategy(trainer, session.context)
            session.progress.begun, session.progress.batches = session.progress.begun or trainer, 0
            if not session.task.verbose:  # a job's bar is drawn at the driver
                for callback in trainer.callbacks:
                    if isinstance(callback, callbacks.ProgressBar):
                        callback.disable()

        def _count(self, *_: Any, **__: Any) -> None:
            """Count a batch, as a sign that this rank does not hang."""
            session.progress.batches += 1

        def teardown(self, trainer: Any, *_: Any, **__: Any) -> None:
            if session.progress.begun is trainer:  # and not one that has run in a hook of it
                session.progress.begun = None

        on_exception = teardown
        on_train_batch_end = on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _count
        on_train_epoch_end = on_validation_end = _count

    if package != flavour():
        return [Guard()]
    from tunelight.lightning.state.recovery import Recovery  # Lightning is loaded when this runs

    return [Guard(), Recovery(session)]


def check_strategy(trainer: Any, context: Context) -> None:
    """Raise StrategyError unless ``trainer`` trains on the gang (any Trainer of one process does for a gang of one)."""
    if context.wanted == 1:
        if (size := getattr(trainer, "world_size", 1)) > 1:
            raise StrategyError(
                f"This Trainer trains on {size} devices, and this trial has one worker, which nobody starts {size} "
                f"processes for. Give the sweep workers={size} and the Trainer strategy=tunelight.RayStrategy(), "
                "without devices."
            )
        return
    alone = f"each of the gang's {context.world_size} workers would train a model of its own"
    ours = f"tunelight.{BACKENDS[context.backend].strategy_name}"
    used = flavour_of(type(trainer))
    if used not in (None, flavour()):
        raise StrategyError(
            f"This Trainer is of {used}, and the workers of this trial use {flavour()}, another copy of the same "
            f"code, so that {alone}. Choose {used} before the sweep: {HOW_TO_CHOOSE}."
        )
    if gang_strategy(trainer) is not None:
        return
    raise StrategyError(
        f"This Trainer uses {type(trainer.strategy).__name__}, so {alone}. Pass strategy={ours}() to the Trainer."
    )
