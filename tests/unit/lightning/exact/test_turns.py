"""Steps in turns, by Lightning's own loop in a gang of one: they learn and log what a step of the whole batch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import tunelight as tl
from tests import flavours
from tests.kit.training import QUIET, TwoLayers
from tunelight.compat.lightning import Callback, pl

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
ROWS = TensorDataset(X, Y)


class Stream(IterableDataset[Any]):
    """Rows without a length, of which Lightning draws a batch ahead."""

    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


Fit = Callable[..., pl.Trainer]


@pytest.fixture
def fit(join: Any, alone: None) -> Fit:
    """Return a function that trains a model on a rank of a gang of one."""

    def train(model: pl.LightningModule, data: Any, wanted: int = 1, **given: Any) -> pl.Trainer:
        join(rank=0, size=1, wanted=wanted)
        torch.manual_seed(0)
        trainer = pl.Trainer(strategy=tl.RayStrategy(**given.pop("ddp", {})), **{"max_epochs": 1, **QUIET, **given})
        trainer.fit(model, data)
        return trainer

    return train


def weights(model: pl.LightningModule) -> list[float]:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).tolist()


def sized(batch: int) -> Any:
    return DataLoader(ROWS, batch)


def same(
    fit: Fit, make: Callable[[], pl.LightningModule], data: Callable[[int], Any], turns: int, **given: Any
) -> None:
    """Assert that one rank of a gang of so many learns in turns what it does from batches of eight."""
    whole, split = make(), make()
    fit(whole, data(8), **given)
    fit(split, data(8 // turns), turns, **given)
    assert weights(split) == pytest.approx(weights(whole), rel=1e-4, abs=1e-6)
    assert weights(split) != pytest.approx(weights(make()), rel=1e-3)  # it has learned


@pytest.mark.parametrize(
    "given",
    [
        {"max_epochs": 2},
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.5},
        {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        {"ddp": {"find_unused_parameters": True}},
        {"precision": "64-true"},
    ],
    ids=str,
)
def test_turns_are_one_batch_to_the_trainer(fit: Fit, given: Any) -> None:
    same(fit, TwoLayers, sized, 4, **given)


class Sharpness(torch.optim.SGD):
    """Asks for a step's gradients twice: at the weights, and a little uphill."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        weights: list[torch.Tensor] = self.param_groups[0]["params"]
        grads = [one.grad for one in weights]
        uphill = [0.3 * grad / (1 + grad.norm()) for grad in grads if grad is not None]
        with torch.no_grad():
            torch._foreach_add_(weights, uphill)
        closure()
        with torch.no_grad():
            torch._foreach_sub_(weights, uphill)
        super().step()
        return loss


def test_an_optimizer_that_runs_a_step_twice_has_the_same_batch_twice(fit: Fit) -> None:
    class Twice(TwoLayers):
        def configure_optimizers(self) -> Any:
            return Sharpness(self.parameters(), lr=self.lr)

    same(fit, Twice, sized, 2, max_epochs=2)


@pytest.mark.parametrize("scale", [2.0**10, 2.0**40])
def test_a_scaled_loss_is_scaled_back_once_a_step(fit: Fit, scale: float) -> None:
    """The larger scale overflows at first, whereupon a step is skipped, and the scale made smaller."""
    models, scales = [], []
    for turns in (1, 4):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        models.append(TwoLayers(lr=0.01))
        plugin = flavours.module("plugins").MixedPrecision("16-mixed", "cpu", scaler)
        fit(models[-1], sized(8 // turns), turns, plugins=[plugin], max_epochs=6)
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    assert weights(models[1]) == pytest.approx(weights(models[0]), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("turns", [2, 4])
@pytest.mark.parametrize(
    "given", [{}, {"max_epochs": 3}, {"limit_train_batches": 2, "max_epochs": 2}, {"max_steps": 3}]
)
def test_turns_of_a_stream_are_one_batch_though_the_next_one_is_drawn(fit: Fit, turns: int, given: Any) -> None:
    same(fit, TwoLayers, lambda batch: DataLoader(Stream(), batch), turns, **given)


@pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "min_size"])
@pytest.mark.parametrize("stream", [False, True])
def test_several_loaders_of_different_lengths(fit: Fit, mode: str, stream: bool) -> None:
    combined = flavours.module("utilities.combined_loader").CombinedLoader

    class Two(TwoLayers):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            losses = [self.loss(one) for one in batch.values() if one is not None]
            return torch.stack(losses).mean()

    def data(batch: int) -> Any:
        long: Any = DataLoader(Stream() if stream else ROWS, batch)
        return combined({"a": long, "b": DataLoader(TensorDataset(X[:16] * 2, Y[:16]), batch)}, mode)

    same(fit, Two, data, 2, max_epochs=2)


class Heard(Callback):
    """What callbacks see after each batch."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.values: list[list[float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.values.append([float(trainer.callback_metrics.get(name, -1)) for name in self.names])


@pytest.mark.filterwarnings("ignore:It is recommended to use .self.log")
@pytest.mark.parametrize("turns", [2, 4, 8])
@pytest.mark.parametrize("sync", [False, True])
def test_what_is_logged_of_a_step_and_an_epoch_is_the_whole_batch_s_also_by_hooks(fit, turns, sync) -> None:
    class Logs(TwoLayers):
        called = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=sync)
            return loss

        def on_before_backward(self, loss: torch.Tensor) -> None:
            self.log("before", loss, on_step=False, on_epoch=True)

        def on_after_backward(self) -> None:
            self.called += 1
            norm = torch.cat([one.grad.flatten() for one in self.parameters() if one.grad is not None]).norm()
            self.log("norm", norm, on_step=False, on_epoch=True)

    heard, models = [Heard("loss_step"), Heard("loss_step")], [Logs(lr=0.0), Logs(lr=0.0)]
    first = fit(models[0], sized(8), callbacks=[heard[0]])
    second = fit(models[1], sized(8 // turns), turns, callbacks=[heard[1]])
    assert heard[1].values == [pytest.approx(each, rel=1e-5) for each in heard[0].values]
    for name in ("loss_epoch", "norm"):
        assert float(second.callback_metrics[name]) == pytest.approx(float(first.callback_metrics[name]), rel=1e-4)
    assert models[0].called == models[1].called == 4


def test_a_sum_that_is_logged_now_and_then_counts_once_for_each_turn_that_logs_it(fit: Fit) -> None:
    class Sums(TwoLayers):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.log("start", torch.tensor(1.0), on_step=True, on_epoch=False, reduce_fx="sum")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx % 3 == 0:
                self.log("samples", torch.tensor(float(len(batch[0]))), on_step=True, on_epoch=False, reduce_fx="sum")
            return self.loss(batch)

    heard = Heard("start", "samples")
    fit(Sums(), sized(4), 2, callbacks=[heard])
    assert heard.values == [[1.0, 8.0]] * 4


def test_a_turn_without_a_loss_is_left_out_in_a_gang_of_one(fit: Fit) -> None:
    class Skips(TwoLayers):
        calls = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.calls += 1
            return None if self.calls % 2 == 0 else self.loss(batch)

    model = Skips()
    fit(model, sized(4), 2)
    assert model.calls == 8
    assert weights(model) != weights(Skips())
