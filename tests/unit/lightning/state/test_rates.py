"""Learning rates, wherever optimizers and schedulers keep them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR

from tunelight.lightning.state.rates import scale


def test_a_factor_holds_for_what_follows_in_a_schedule_too() -> None:
    def made(lr: float) -> tuple[Any, SequentialLR]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        parts = [LambdaLR(optimizer, lambda step: (1 + step) / 3), CosineAnnealingLR(optimizer, 4, eta_min=lr / 10)]
        schedule = SequentialLR(optimizer, parts, milestones=[2])
        return SimpleNamespace(
            optimizers=[optimizer], lr_scheduler_configs=[SimpleNamespace(scheduler=schedule)]
        ), schedule

    def rates(trainer: Any, schedule: SequentialLR) -> list[float]:
        seen = []
        for _ in range(6):
            seen.append(trainer.optimizers[0].param_groups[0]["lr"])
            trainer.optimizers[0].step()
            schedule.step()
        return seen

    trainer, schedule = made(0.1)
    scale(trainer, 4)
    assert rates(trainer, schedule) == pytest.approx(rates(*made(0.4)))
