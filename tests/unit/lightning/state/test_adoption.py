"""Adopting in place: weights bit by bit, the training's own counters and options, and the new values on top."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

from tests.kit.training import QUIET
from tunelight.compat.lightning import pl
from tunelight.extras.horovod.strategy import _scale as scale
from tunelight.lightning.state.adoption import TrainerExchange, put_values


class Net(pl.LightningModule):
    """Two layers with rates of their own: the second's is a tenth."""

    def __init__(self, lr: float = 0.1, momentum: float = 0.9, width: int = 4, schedule: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.schedule = schedule
        self.first, self.second = torch.nn.Linear(2, width), torch.nn.Linear(width, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.second(self.first(batch[0])).pow(2).mean()
        return loss

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [
            {"params": self.first.parameters()},
            {"params": self.second.parameters(), "lr": self.lr / 10, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.SGD(groups, lr=self.lr, momentum=self.hparams["momentum"], weight_decay=0.01)
        if not self.schedule:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Hooked(Net):
    """Takes anything, by a hook."""

    def on_adopt(self, config: dict[str, Any]) -> None:
        self.told = config


def fitted(net: pl.LightningModule, epochs: int = 1) -> pl.Trainer:
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    trainer = pl.Trainer(max_epochs=epochs, **QUIET)
    trainer.fit(net, DataLoader(TensorDataset(x), 4))
    return trainer


def adopt(parent: pl.Trainer, child: pl.Trainer, before: Any, config: Any) -> Any:
    """Let a child take over from a parent; return why it does not."""
    return TrainerExchange(child).take(TrainerExchange(parent).give(), before, config)


def options(trainer: pl.Trainer, name: str) -> list[Any]:
    return [group[name] for group in trainer.optimizers[0].param_groups]


BEFORE = {"lr": 0.1, "momentum": 0.9}


def test_weights_and_optimizer_states_are_the_parents_bit_by_bit() -> None:
    torch.manual_seed(1)
    parent, child = fitted(Net(lr=0.02), 3), fitted(Net())
    mine = parent.lightning_module.state_dict()
    assert not torch.equal(mine["first.weight"], child.lightning_module.state_dict()["first.weight"])
    assert adopt(parent, child, BEFORE, {"lr": 0.024, "momentum": 0.9}) is None
    for name, tensor in child.lightning_module.state_dict().items():
        assert torch.equal(tensor, mine[name])
    theirs, own = (one.optimizers[0].state_dict()["state"] for one in (parent, child))
    assert all(torch.equal(own[key]["momentum_buffer"], theirs[key]["momentum_buffer"]) for key in theirs)
    assert (child.current_epoch, child.global_step) == (1, 4)


def test_what_was_adopted_is_the_childs_own_memory() -> None:
    parent, child = fitted(Net()), fitted(Net())
    given = copy.deepcopy(TrainerExchange(parent).give())
    TrainerExchange(child).take(given, BEFORE, BEFORE)
    before = [part.copy() for part in given.storages]
    state = child.optimizers[0].state_dict()["state"]
    for one in state.values():
        one["momentum_buffer"].add_(1.0)
    with torch.no_grad():
        child.lightning_module.get_parameter("first.weight").add_(1.0)
    assert all((part == old).all() for part, old in zip(given.storages, before, strict=True))


def test_mutated_values_reach_every_group_in_its_ratio_and_hparams_and_attributes() -> None:
    parent, child = fitted(Net(lr=0.5, momentum=0.5)), fitted(Net())
    config = {"model.lr": 0.3, "momentum": 0.8}
    assert adopt(parent, child, {"model.lr": 0.1, "momentum": 0.9}, config) is None
    assert options(child, "lr") == [0.3, 0.01 * (0.3 / 0.1)]
    assert options(child, "momentum") == [0.8, 0.8]
    assert options(child, "weight_decay") == [0.01, 0.0]
    module: Any = child.lightning_module
    assert (module.hparams["lr"], module.hparams["momentum"], module.lr) == (0.3, 0.8, 0.3)


def test_a_schedule_stays_where_it_was_and_goes_on_from_the_new_rate() -> None:
    parent, child = fitted(Net(lr=0.5, schedule=True), 3), fitted(Net(schedule=True), 1)
    assert options(child, "lr")[0] == 0.05  # halved once
    assert adopt(parent, child, BEFORE, {**BEFORE, "lr": 0.2}) is None
    scheduler: Any = child.lr_scheduler_configs[0].scheduler
    assert (options(child, "lr")[0], options(child, "initial_lr")[0], scheduler.base_lrs[0]) == (0.1, 0.2, 0.2)
    scheduler.step()
    assert options(child, "lr")[0] == 0.05


def test_another_model_and_a_value_that_nothing_takes_in_place_are_refused_and_nothing_is_changed() -> None:
    parent, other, child = fitted(Net()), fitted(Net(width=5)), fitted(Net())
    before = copy.deepcopy(child.lightning_module.state_dict())
    assert "first.weight is (4, 2) here and (5, 2) there" in str(adopt(other, child, BEFORE, BEFORE))
    for key in ("dropout", "data.lr", "width"):
        assert key in str(adopt(parent, child, {**BEFORE, key: 1}, {**BEFORE, key: 2}))
    child.lightning_module.get_parameter("first.weight").requires_grad_(False)
    assert adopt(parent, child, BEFORE, BEFORE) == "the models differ in what is frozen"
    assert all(torch.equal(tensor, before[name]) for name, tensor in child.lightning_module.state_dict().items())


def test_a_module_with_on_adopt_takes_what_is_not_built_once() -> None:
    parent, child = fitted(Hooked()), fitted(Hooked())
    assert "data.batch" in str(adopt(parent, child, {"data.batch": 1}, {"data.batch": 2}))
    assert adopt(parent, child, {"model.dropout": 0.1}, {"model.dropout": 0.2}) is None
    module: Any = child.lightning_module
    assert module.told == {"model.dropout": 0.2}


def test_what_the_module_adds_to_a_checkpoint_comes_along() -> None:
    class Averaged(Net):
        average = 0.0

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["average"] = self.average

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.average = checkpoint["average"]

    parent, child = fitted(Averaged()), fitted(Averaged())
    parent.lightning_module.average = 3.0  # type: ignore[assignment]
    adopt(parent, child, {}, {})
    assert child.lightning_module.average == 3.0


class Two(pl.LightningModule):
    """A generator and a discriminator with an optimizer and a schedule each."""

    def __init__(self, gen: float = 1e-3, disc: float = 4e-4) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.rates = (gen, disc)
        self.gen, self.disc = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, _: int) -> None:
        for optimizer, layer in zip(self.optimizers(), (self.gen, self.disc), strict=True):
            optimizer.zero_grad()
            self.manual_backward(layer(batch[0]).pow(2).mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        made = [
            torch.optim.Adam(layer.parameters(), lr=rate)
            for layer, rate in zip((self.gen, self.disc), self.rates, strict=True)
        ]
        return made, [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in made]


def rates_of(trainer: pl.Trainer) -> list[Any]:
    return [(one.param_groups[0]["lr"], one.param_groups[0]["initial_lr"]) for one in trainer.optimizers]


def test_of_two_keys_that_end_in_one_word_each_changes_its_own_optimizer_and_schedule() -> None:
    parent, child = fitted(Two()), fitted(Two())
    rates = {"model": {"gen": {"lr": 1e-3}, "disc": {"lr": 4e-4}}}
    new = {"model": {"gen": {"lr": 4e-4}, "disc": {"lr": 8e-4}}}
    assert adopt(parent, child, rates, new) is None
    assert rates_of(child) == [(4e-4, 4e-4), (8e-4, 8e-4)]
    assert [one.scheduler.base_lrs for one in child.lr_scheduler_configs] == [[4e-4], [8e-4]]


def test_a_rate_that_two_keys_may_mean_is_not_changed_in_place() -> None:
    parent, child = fitted(Two(1e-3, 1e-3)), fitted(Two(1e-3, 1e-3))
    alike = {"model": {"gen": {"lr": 1e-3}, "disc": {"lr": 1e-3}}}
    new = {"model": {"gen": {"lr": 2e-3}, "disc": {"lr": 1e-3}}}
    refused = adopt(parent, child, alike, new)
    assert "model.gen.lr and model.disc.lr end in one word" in refused
    assert rates_of(child) == [(1e-3, 1e-3), (1e-3, 1e-3)]
    assert put_values(child, alike, new) == refused.partition(";")[0]


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
