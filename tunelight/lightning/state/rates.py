"""Learning rates: where optimizers and schedulers keep them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR

from tunelight.compat.lightning import pl

OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr", "eta_min")


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
    for one in scheduler._schedulers if isinstance(scheduler, ChainedScheduler | SequentialLR) else ():
        yield from each(one)
