"""Trials that start again from a checkpoint behind the last epoch of a fit, or behind the fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tunelight as tl
from tests.unit.lightning.test_restarts import Net, Trial, loader, trainer, trial
from tunelight.compat.lightning import pl

__all__ = ["trial"]

pytestmark = pytest.mark.usefixtures("every_checkpoint")


class Ending(Net):
    """Notes the hooks around training."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[str] = []

    def on_train_start(self) -> None:
        self.hooks.append("start")

    def on_train_end(self) -> None:
        self.hooks.append("end")


@pytest.mark.parametrize("limit", [{"epochs": 2}, {"epochs": -1, "max_steps": 8}], ids=str)
def test_a_fit_that_goes_on_behind_its_last_epoch_ends_as_any_other(trial: Trial, limit: Any) -> None:
    nets: list[Ending] = []
    metrics: list[dict[str, Any]] = []

    def train() -> None:
        nets.append(Ending())
        average = pl.callbacks.StochasticWeightAveraging(0.02, swa_epoch_start=1)
        one = trainer(**limit, callbacks=[average] if limit["epochs"] == 2 else [])
        one.fit(nets[-1], loader(), loader())
        metrics.append({name: value.item() for name, value in one.callback_metrics.items()})
        assert one.logged_metrics.keys() == one.callback_metrics.keys()

    whole = trial(train)
    again = trial(train, whole.checkpoints[2])
    assert (whole.error, again.error) == (None, None)
    assert again.numbers == []
    assert nets[1].epochs == []
    assert nets[0].hooks == nets[1].hooks == ["start", "end"]
    assert metrics[0] == metrics[1] != {}
    assert torch.equal(nets[0].head.weight, nets[1].head.weight)


def test_a_fit_that_goes_on_behind_a_report_of_its_end_makes_no_second_one(trial: Trial) -> None:
    nets: list[Ending] = []

    def train() -> None:
        nets.append(Ending())
        trainer(2, tl.TuneReportCheckpointCallback(on="train_end")).fit(nets[-1], loader(), loader())

    whole = trial(train)
    again = trial(train, whole.checkpoints[1])
    assert (whole.error, again.error) == (None, None)
    assert (whole.numbers, again.numbers) == ([1], [])
    assert nets[1].hooks == ["start", "end"]


def test_a_report_at_the_fit_s_end_is_not_made_again_behind_it(trial: Trial) -> None:
    def train() -> None:
        one = trainer(1, tl.TuneReportCallback("val_loss", on="fit_end"))
        one.fit(Net(), loader(), loader())
        tl.report({"score": 1.0}, checkpoint=one.save_checkpoint)

    whole = trial(train)
    again = trial(train, whole.checkpoints[2])
    assert (whole.error, again.error) == (None, None)
    assert (whole.numbers, again.numbers) == ([1, 2], [])
