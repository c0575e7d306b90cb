"""Learning rates in a gang that is smaller than intended: scaled by its size or the root of it, over a warm-up.

Linear scaling and its warm-up are those of Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tunelight.compat.lightning import pl
from tunelight.session.session import Session

OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr", "eta_min")


def factor_for(keep: str, workers: int, wanted: int) -> float:
    """Return the factor of learning rates in a gang of ``workers`` in place of ``wanted``."""
    if keep == "batch":
        return 1.0
    return float((workers / wanted) ** (1.0 if keep == "linear" else 0.5))


class LearningRates:
    """Scales all learning rates of a fit by a factor, at once or over a number of steps.

    The present factor is saved in the checkpoint with the rates, so that it is not applied twice.
    """

    def __init__(self, session: Session | None) -> None:
        self._target, self._warmup = 1.0, 0
        if session is not None:
            context, on_resize = session.context, session.task.on_resize
            self._target = factor_for(on_resize.keep, context.world_size, context.wanted)
            self._warmup = on_resize.warmup_steps
        self._from, self._at, self._factor = self._target, 0, 1.0
        self._over = False

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"from": self._from, "at": self._at, "target": self._target, "factor": self._factor}

    def begin(self, trainer: pl.Trainer, kept: dict[str, Any] | None) -> None:
        """Start a fit, from scratch or with the factor ``kept`` in a checkpoint."""
        self._from, self._at, self._factor, self._over = self._target, 0, 1.0, False
        if kept is not None:
            self._factor = kept["factor"]
            same = kept["target"] == self._target
            self._from, self._at = (kept["from"], kept["at"]) if same else (self._factor, trainer.global_step)
        elif trainer.global_step:
            self._from, self._at = 1.0, trainer.global_step
        self.follow(trainer)

    def at(self, step: int) -> float:
        """Return the factor of the optimizer step after ``step`` others."""
        done = 1.0 if self._warmup <= 0 else min(1.0, (step - self._at + 1) / self._warmup)
        return self._target if done == 1.0 else self._from + (self._target - self._from) * done

    def follow(self, trainer: pl.Trainer) -> None:
        """Set all rates for the next step."""
        if self._over:
            return
        factor = self.at(trainer.global_step)
        if factor != self._factor:
            scale(trainer, factor / self._factor)
            self._factor = factor
        self._over = factor == self._target


def scale(trainer: pl.Trainer, factor: float) -> None:
    """Multiply the learning rates of a Trainer's optimizers, and the initial and final ones of its schedulers."""
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            for name in OF_GROUPS:
                if name in group:
                    group[name] *= factor
    for config in trainer.lr_scheduler_configs:
        for scheduler in each(config.scheduler):
            for name in OF_SCHEDULERS:
                value = getattr(scheduler, name, None)
                if isinstance(value, list):
                    setattr(scheduler, name, [rate * factor for rate in value])
                elif isinstance(value, int | float):
                    setattr(scheduler, name, value * factor)


def each(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and those that it consists of."""
    yield scheduler
    for one in getattr(scheduler, "_schedulers", []):
        yield from each(one)
