"""What models of ray_lightning's users do: several optimizers, streams, NaN, precision, accumulation."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.integration.parity import (
    BACKENDS,
    EVERY_BACKEND,
    Boring,
    Numbered,
    Tell,
    indices,
    lines,
    loader,
    note,
    same,
    strategy,
    trainer,
    weights,
)
from tunelight.compat.lightning import pl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_gangs")]  # a port: run by make test-full


class Gan(pl.LightningModule):
    """A generator and a discriminator, each with its optimizer, trained by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real: torch.Tensor = batch[1]
        first, second = self.optimizers()  # type: ignore[attr-defined]  # two, as below
        judge = nn.functional.binary_cross_entropy_with_logits
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        self.toggle_optimizer(first)
        fooled = judge(self.discriminator(self.generator(real[:, :4])), ones)
        first.zero_grad()
        self.manual_backward(fooled)
        first.step()
        self.untoggle_optimizer(first)

        self.toggle_optimizer(second)
        fake = self.generator(real[:, :4]).detach()
        told = (judge(self.discriminator(real), ones) + judge(self.discriminator(fake), zeros)) / 2
        second.zero_grad()
        self.manual_backward(told)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"fooled": fooled, "told": told}, on_step=False, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.discriminator)]


def copies(one: pl.Trainer, module: pl.LightningModule) -> Any:
    """Return this rank's weights, which are to be those of the other."""
    return [value.flatten().tolist() for value in module.state_dict().values()]


@BACKENDS
def test_gan_with_manual_optimization_and_two_optimizers(backend: str, tmp_path: Path) -> None:
    """The same as one process with the same batches: one batch is all data, whose order is the ranks' sampler's."""
    ours, theirs = Gan(), Gan()
    theirs.load_state_dict(weights(ours))
    told = Tell(tmp_path, copies, on="train_end")
    passed = {"find_unused_parameters": True} if backend == "ddp" else {}
    one = trainer(strategy(backend, **passed), max_epochs=3, callbacks=[told])
    one.fit(ours, loader(32, 16))
    alone = trainer("auto", max_epochs=3)
    alone.fit(theirs, loader(32, 32))
    assert same(weights(ours), weights(theirs), atol=1e-5)
    assert one.global_step == alone.global_step == 6
    first, second = told.heard()
    assert first == second
    assert {name: float(value) for name, value in one.callback_metrics.items()} == pytest.approx(
        {name: float(value) for name, value in alone.callback_metrics.items()}, abs=1e-4
    )


class Stream(IterableDataset[Any]):
    """Points one after another, of which each rank and each DataLoader's worker takes its own."""

    def __init__(self, size: int) -> None:
        self.data = Numbered(size)
        self.rank, self.ranks = 0, 1

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        own, of = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.data[n] for n in range(self.rank + self.ranks * own, len(self.data), self.ranks * of))


class Streaming(Boring):
    """Trains on a stream of its rank's own points."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers
        self.seen: list[Any] = []

    def train_dataloader(self) -> Any:
        stream = Stream(32)
        stream.rank, stream.ranks = self.global_rank, self.trainer.world_size
        return DataLoader(stream, batch_size=4, num_workers=self.workers)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch[0].tolist())
        return super().training_step(batch, batch_idx)


def seen(one: pl.Trainer, module: Any) -> Any:
    return module.seen


@pytest.mark.parametrize("workers", [0, 2])
@EVERY_BACKEND
def test_iterable_dataset(backend: str, workers: int, tmp_path: Path) -> None:
    told = Tell(tmp_path, seen, on="train_end")
    one = trainer(backend, callbacks=[told])
    one.fit(Streaming(workers))
    assert one.global_step == 4
    assert [sorted(indices(rank)) for rank in told.heard()] == [list(range(rank, 32, 2)) for rank in (0, 1)]


class Doubtful(Boring):
    """Logs a metric that is NaN on one rank, and one that is infinite."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("doubt", math.nan if self.global_rank else 1.0, sync_dist=True)
        self.log("endless", math.inf, sync_dist=True)
        super().validation_step(batch, batch_idx)


@EVERY_BACKEND
def test_nan_metric(backend: str) -> None:
    model, one = Doubtful(), trainer(backend)
    one.fit(model, loader(), loader())
    assert math.isnan(one.callback_metrics["doubt"])
    assert math.isinf(one.callback_metrics["endless"])
    assert math.isfinite(one.callback_metrics["val_loss"])
    (again,) = one.validate(model, loader(), verbose=False)
    assert math.isnan(again["doubt"])


class Typed(Boring):
    """Remembers in which precision its layer computes."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def loss(self, batch: Any) -> torch.Tensor:
        self.found = str(self.layer(batch[1]).dtype)
        return super().loss(batch)


def precision(one: pl.Trainer, module: Any) -> Any:
    return module.found, str(next(module.parameters()).dtype), one.precision


class Late(Boring):
    """Makes its layer in configure_model, as large models do."""

    def __init__(self) -> None:
        super().__init__()
        del self.layer

    def configure_model(self) -> None:
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(8, 1)


@EVERY_BACKEND
def test_layers_of_configure_model_come_back_trained(backend: str) -> None:
    torch.manual_seed(1)
    model, one = Late(), trainer(backend)
    one.fit(model, loader(), loader())
    trained = weights(model)
    assert trained
    (found,) = one.test(model, loader(), verbose=False)
    assert found["test_loss"] == pytest.approx(float(one.callback_metrics["test_loss"]))
    assert same(trained, weights(model))
    (again,) = trainer(backend).test(model, loader(), verbose=False)
    assert again["test_loss"] == pytest.approx(found["test_loss"])


@EVERY_BACKEND
def test_a_model_that_was_converted_comes_back_as_it_is(backend: str) -> None:
    precision, dtype = ("bf16-true", torch.bfloat16) if backend == "sharded" else ("64-true", torch.float64)
    model, one = Boring(), trainer(backend, precision=precision)
    one.fit(model, loader(), loader())
    assert model.layer.weight.dtype == dtype


@EVERY_BACKEND
def test_bf16_mixed_precision(backend: str, tmp_path: Path) -> None:
    told = Tell(tmp_path, precision, on="train_end")
    model, one = Typed(), trainer(backend, precision="bf16-mixed", callbacks=[told])
    before = weights(model)
    one.fit(model, loader(), loader())
    assert told.heard() == [["torch.bfloat16", "torch.float32", "bf16-mixed"]] * 2
    assert not same(before, weights(model))
    assert model.layer.weight.dtype == torch.float32
    assert one.test(model, loader(), verbose=False)[0]["test_loss"] < 2


@EVERY_BACKEND
def test_gradient_accumulation_equals_a_bigger_batch(backend: str) -> None:
    """Four batches of 4 on each of two ranks make the one batch of 32 that one process has."""
    ours, theirs = Boring(), Boring()
    theirs.load_state_dict(weights(ours))
    one = trainer(backend, max_epochs=3, accumulate_grad_batches=4)
    one.fit(ours, loader(32, 4))
    trainer("auto", max_epochs=3).fit(theirs, loader(32, 32), loader())
    assert same(weights(ours), weights(theirs))
    assert one.global_step == 3


def noting(folder: Path, graph: Any, _inputs: Any) -> Any:
    """Be a backend of torch.compile that notes which process compiles, and runs what it is given as it is."""
    note(folder, "compiled", os.getpid())
    return graph.forward


class Silent(Boring):
    """Logs nothing while it trains: torch 2.13 cannot compile Lightning's log, nor in one process."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(batch)


def test_a_compiled_model_is_compiled_on_the_workers(tmp_path: Path) -> None:
    plain, model = Silent(), Silent()
    plain.load_state_dict(weights(model))
    one = trainer("ddp")
    compiled: Any = torch.compile(model, backend=partial(noting, tmp_path))
    for _ in range(2):  # and again, with what the first run left
        one.fit(compiled, loader(32, 16))
        one.fit_loop.max_epochs = 2
    again = trainer("ddp", max_epochs=2)
    again.fit(plain, loader(32, 16))
    assert same(weights(model), weights(plain))
    ours, theirs = one.predict(compiled, loader()), again.predict(plain, loader())
    assert all(torch.allclose(one, other) for one, other in zip(ours or [], theirs or [], strict=True))
    processes = set(lines(tmp_path, "compiled"))
    assert len(processes) == 2
    assert str(os.getpid()) not in processes
    assert torch.equal(compiled.layer.weight, model.layer.weight)
