"""Catches the Trainer that would train every rank alone.

Lightning loads this through its own entry point, ``pytorch_lightning.callbacks_factory``: every Trainer made
inside a trial gets one silent callback that looks at its strategy, and one that makes it recover.
Outside of a trial there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunelight.errors import StrategyError
from tunelight.session import Session, current

if TYPE_CHECKING:
    from pytorch_lightning.callbacks import Callback


STRATEGIES = {"ddp": "RayStrategy", "horovod": "HorovodRayStrategy", "sharded": "RayShardedStrategy"}
"""What tunelight's strategies are called, by the backend of the gangs that they are for."""


def guard_callbacks() -> list[Callback]:
    """Return the guard and what a recovery needs inside a trial, else nothing. Called by Lightning."""
    session = current()
    if session is None:
        return []
    from tunelight.strategies.recovery import Recovery  # noqa: PLC0415 - Lightning is loaded when this runs

    return [_guard(session), Recovery(session)]


def _guard(session: Session) -> Callback:
    from pytorch_lightning.callbacks import Callback, ProgressBar  # noqa: PLC0415 - Lightning is loaded when this runs

    class Guard(Callback):
        """Checks the Trainer's strategy before it does anything, counts its batches, quiets bars nobody could see."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            check_strategy(trainer, session)
            session.begun = True
            if not session.verbose:  # a job's bar is drawn at the driver
                for callback in trainer.callbacks:
                    if isinstance(callback, ProgressBar):
                        callback.disable()

        def _count(self, *_: Any, **__: Any) -> None:
            """Count a batch: a rank that gets on does not hang."""
            session.progress += 1

        on_train_batch_end = on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _count
        on_train_epoch_end = on_validation_end = _count

    return Guard()


def check_strategy(trainer: Any, session: Session) -> None:
    """Raise StrategyError unless ``trainer`` trains on the gang (any strategy does for a gang of one)."""
    if getattr(trainer.strategy, "backend", None) in STRATEGIES or session.wanted == 1:
        return
    raise StrategyError(
        f"This Trainer uses {type(trainer.strategy).__name__}, so each of the gang's {session.world_size} "
        f"workers would train a model of its own. Pass strategy=tunelight.{STRATEGIES[session.backend]}() "
        "to the Trainer."
    )
