"""Catches the Trainer that would train every rank alone.

Every Trainer made inside a trial gets one silent callback that looks at its strategy, and one of
``pytorch_lightning`` another that makes it recover. `tunelight.lightning.guard` is how Lightning finds them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tunelight.compat.lightning import flavour, flavour_of
from tunelight.errors import StrategyError
from tunelight.session.context import Context
from tunelight.session.session import Session, current
from tunelight.settings.backends import BACKENDS

if TYPE_CHECKING:
    from tunelight.compat.lightning import Callback

_OTHER = "lightning"
"""The other package that Lightning is published as."""


def guard_callbacks() -> list[Callback]:
    """Return the guard and what a recovery needs inside a trial, else nothing."""
    session = current()
    if session is None:
        return []
    from tunelight.lightning.state.recovery import Recovery  # Lightning is loaded when this runs

    return [guard_for(session, "pytorch_lightning"), Recovery(session)]


def guard_for(session: Session, package: str) -> Any:
    """Return the guard as a callback of the package that makes the Trainer, and so has imported its callbacks."""
    callbacks = sys.modules[f"{package}.callbacks"]

    class Guard(callbacks.Callback):  # type: ignore[misc, name-defined]  # of either package
        """Checks the Trainer's strategy before it does anything, counts its batches, quiets bars nobody could see."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            check_strategy(trainer, session.context)
            session.progress.begun = True
            if not session.task.verbose:  # a job's bar is drawn at the driver
                for callback in trainer.callbacks:
                    if isinstance(callback, callbacks.ProgressBar):
                        callback.disable()

        def _count(self, *_: Any, **__: Any) -> None:
            """Count a batch: a rank that gets on does not hang."""
            session.progress.batches += 1

        on_train_batch_end = on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _count
        on_train_epoch_end = on_validation_end = _count

    return Guard()


def check_strategy(trainer: Any, context: Context) -> None:
    """Raise StrategyError unless ``trainer`` trains on the gang (any Trainer does for a gang of one)."""
    if context.wanted == 1:
        return
    alone = f"each of the gang's {context.world_size} workers would train a model of its own"
    ours = f"tunelight.{BACKENDS[context.backend].strategy_name}"
    if flavour_of(type(trainer)) not in (None, flavour()):
        raise StrategyError(
            f"This Trainer is of the package {_OTHER}, and tunelight's strategies are of pytorch_lightning, another "
            f"copy of the same code, so that {alone}. Write `import pytorch_lightning as pl` in place of `import "
            f"lightning.pytorch as pl` for Trainer, model and callbacks, and pass strategy="
            f"{ours}() to the Trainer. A library that imports {_OTHER} itself can train with "
            "one worker: workers=1."
        )
    if getattr(trainer.strategy, "backend", None) in BACKENDS:
        return
    raise StrategyError(
        f"This Trainer uses {type(trainer.strategy).__name__}, so {alone}. Pass strategy={ours}() to the Trainer."
    )
