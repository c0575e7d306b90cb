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
    ("epochs", "otherwise", "validates"),
    [
        ({"_should_accumulate": lambda: True}, {}, 0),  # between two batches of a step
        ({"_num_ready_batches_reached": lambda: True}, {}, 0),  # where the epoch ends
        ({"_is_training_done": True}, {}, 0),
        ({}, {}, 1),  # behind a validation
        ({}, {"should_stop": True}, 0),  # where a callback has ended training
        ({}, {"callbacks": []}, 0),  # while a rate is sought, which no checkpoint should hold: the finder's are there
    ],
)
def test_it_is_not_left_where_it_could_not_go_on(epochs, otherwise, validates) -> None:
    fit = Fit(**epochs)
    vars(fit.trainer).update(otherwise)
    assert fit.step(validates) == []
