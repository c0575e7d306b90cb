"""Where a fit may be left between two reports: at the end of a step, but for those behind which it cannot go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunelight.lightning.state.recovery import Recovery


class Fit:
    """A Trainer in the midst of an epoch, whose gang is told to leave."""

    def __init__(self, **epochs: Any) -> None:
        self.left: list[dict[str, int]] = []
        boundary = SimpleNamespace(hurried=True, end_step=lambda _, **where: self.left.append(where))
        session: Any = SimpleNamespace(boundary=boundary)
        self.recovery = Recovery(session)
        self.validations = SimpleNamespace(total=SimpleNamespace(ready=0))
        loop = {
            "_should_accumulate": lambda: False,
            "_num_ready_batches_reached": lambda: False,
            "_is_training_done": False,
            "val_loop": SimpleNamespace(batch_progress=self.validations),
            "batch_progress": SimpleNamespace(total=SimpleNamespace(ready=9)),
        }
        self.trainer: Any = SimpleNamespace(
            fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(**{**loop, **epochs})),
            should_stop=False,
            callbacks=[self.recovery],
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
            current_epoch=1,
            global_step=7,
            save_checkpoint=None,
        )

    def step(self, validates: int = 0) -> list[dict[str, int]]:
        def advance(_: object) -> None:
            self.validations.total.ready += validates

        self.recovery._end_step(self.trainer, advance, None)
        return self.left


def test_it_is_left_with_its_epoch_step_and_batches() -> None:
    assert Fit().step() == [{"epoch": 1, "step": 7, "batch": 9}]


@pytest.mark.parametrize(
    "epochs",
    [
        {"_should_accumulate": lambda: True},
        {"_num_ready_batches_reached": lambda: True},
        {"_is_training_done": True},
    ],
)
def test_it_is_not_left_between_two_batches_of_a_step_nor_where_the_epoch_ends(epochs: dict[str, Any]) -> None:
    assert Fit(**epochs).step() == []


def test_it_is_not_left_behind_a_validation() -> None:
    assert Fit().step(validates=1) == []


def test_it_is_not_left_where_a_callback_has_ended_training() -> None:
    fit = Fit()
    fit.trainer.should_stop = True
    assert fit.step() == []


def test_it_is_not_left_while_a_learning_rate_is_sought_which_no_checkpoint_should_hold() -> None:
    fit = Fit()
    fit.trainer.callbacks = []  # Lightning's finder puts its own in their place
    assert fit.step() == []
