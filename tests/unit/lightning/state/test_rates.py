"""Learning rates that follow the gang's size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunelight.lightning.state.rates import LearningRates, factor_for


def session(workers: int, keep: str = "linear", warmup: int = 0, wanted: int = 4) -> Any:
    resize = SimpleNamespace(keep=keep, warmup_steps=warmup)
    context = SimpleNamespace(world_size=workers, wanted=wanted)
    return SimpleNamespace(context=context, task=SimpleNamespace(on_resize=resize))


def trainer(step: int = 0, lr: float = 0.4) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return SimpleNamespace(
        global_step=step, optimizers=[optimizer], lr_scheduler_configs=[SimpleNamespace(scheduler=scheduler)]
    )


def rate(one: Any) -> float:
    return float(one.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize(("keep", "factor"), [("batch", 1.0), ("linear", 0.25), ("sqrt", 0.5)])
def test_rates_scale_with_the_size_or_its_root(keep: str, factor: float) -> None:
    assert factor_for(keep, 1, 4) == factor


def test_rates_are_scaled_once_however_often_a_trial_goes_on() -> None:
    one, kept = trainer(), None
    for _ in range(3):
        rates = LearningRates(session(2))
        rates.begin(one, kept)
        kept = rates.state()
        assert rate(one) == pytest.approx(0.2)
        assert one.lr_scheduler_configs[0].scheduler.base_lrs == pytest.approx([0.2])
    LearningRates(session(4)).begin(one, kept)
    assert rate(one) == pytest.approx(0.4)
    assert one.optimizers[0].param_groups[0]["initial_lr"] == pytest.approx(0.4)


def test_a_warm_up_takes_its_steps_and_goes_on_after_a_restart() -> None:
    one = trainer(step=10)
    rates = LearningRates(session(2, warmup=4))
    rates.begin(one, LearningRates(session(4)).state())
    seen = [rate(one)]
    for step in (11, 12):
        one.global_step = step
        rates.follow(one)
        seen.append(rate(one))
    kept = rates.state()
    again = LearningRates(session(2, warmup=4))
    again.begin(one, kept)
    one.global_step = 13
    again.follow(one)
    seen.append(rate(one))
    assert seen == pytest.approx([0.35, 0.3, 0.25, 0.2])


def test_a_trial_that_starts_small_starts_with_small_rates() -> None:
    one = trainer()
    LearningRates(session(1, warmup=100)).begin(one, None)
    assert rate(one) == pytest.approx(0.1)
