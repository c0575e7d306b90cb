"""Exact evaluation on 2 and 4 ranks, as by a plain Trainer in this process.

A case is given a function that makes a Trainer; it has a model and data, and returns what the Trainer makes of them.
One gang of each size runs all of `CASES`, in one task; each test then compares one of them. That ranks evaluate by
default as under Lightning's DDP is shown by tests/differential.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch
import torchmetrics
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from tests.conftest import share_holdings
from tests.kit import tasks
from tests.kit.training import QUIET
from tunelight.compat.lightning import BasePredictionWriter, Callback, pl
from tunelight.errors import StrategyError
from tunelight.gang.gang import Gang
from tunelight.gang.spec import GangSpec
from tunelight.lightning.exact.eval_shards import interleave
from tunelight.lightning.exact.evaluation import ExactEvaluation
from tunelight.resources import Reservation
from tunelight.session.task import Home

SIZES = (1, 3, 5, 7, 13)
Case = Callable[[Callable[..., pl.Trainer]], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def data(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, 4, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def loader(size: int, batch_size: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(data(size), batch_size=batch_size, **options)


class Model(pl.LightningModule):
    """Logs and keeps in every way that there is."""

    hits: torch.Tensor

    def __init__(self, on_step: bool = False) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        self.accuracy = torchmetrics.MeanMetric()
        self.scores = torchmetrics.CatMetric()
        self.synced = torchmetrics.MeanMetric(dist_sync_on_step=True)
        self.register_buffer("hits", torch.zeros(2, dtype=torch.long))
        self.losses: list[torch.Tensor] = []
        self.seen = {"samples": 0, "batches": 0}
        self.on_step = on_step
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        x, y = batch
        logits = self.net(x)
        losses = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        right = logits.argmax(1) == y
        self.log("mean", losses.mean(), sync_dist=True)
        self.log("sum", losses.mean(), reduce_fx="sum", sync_dist=True)
        self.log("worst", losses.max(), reduce_fx="max", sync_dist=True)
        self.log("best", losses.min(), reduce_fx=torch.min, sync_dist=True)
        self.log("count", float(len(x)), reduce_fx=torch.sum, sync_dist=True)
        self.log("right", right.sum().float(), reduce_fx="sum", sync_dist=True)
        if self.on_step:
            self.log("stepped", losses.mean(), on_step=True, on_epoch=True, sync_dist=True)
            self.all_gather(losses.mean())
            self.synced(losses.mean(), weight=len(x))
            self.log("synced", self.synced, on_step=False, on_epoch=True)
        self.accuracy(right.float().mean(), weight=len(x))
        self.log("metric", self.accuracy, on_epoch=True)
        self.scores.update(logits[:, 0])
        self.hits[0] += right.sum()
        self.hits[1] += len(x)
        self.losses.append(losses.detach())
        self.seen["samples"] += len(x)
        self.seen["batches"] += 1
        return losses

    def on_validation_epoch_end(self) -> None:
        hits = self.trainer.strategy.reduce(self.hits, reduce_op="sum").tolist()
        self.log("hits", hits[0] / hits[1])
        self.log("samples", float(hits[1]))
        total = torch.stack([losses.sum() for losses in self.losses]).sum() if self.losses else torch.zeros(())
        self.log("total", total, reduce_fx="sum", sync_dist=True)
        self.log("batches", float(self.seen["batches"]), reduce_fx="sum", sync_dist=True)
        scores = self.scores.compute()
        self.log("scores", scores.sum())
        self.log("scores_seen", float(scores.numel()))
        self.scores.reset()
        self.hits.zero_()
        self.losses.clear()
        self.seen.update(samples=0, batches=0)

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        outputs: torch.Tensor = self.net(batch[0] if isinstance(batch, list | tuple) else batch)
        return outputs


def numbers(logged: Any) -> dict[str, float]:
    return {key: float(value) for key, value in logged.items() if "step" not in key}


@case
def each_size(make: Callable[..., pl.Trainer]) -> Any:
    trainer = make()
    return {
        (size, batch): numbers(trainer.validate(Model(), loader(size, batch), verbose=False)[0])
        for size in SIZES
        for batch in (2, 4)
    }


@case
def collectives_in_steps(make: Callable[..., pl.Trainer]) -> Any:
    trainer = make()
    return {size: numbers(trainer.validate(Model(True), loader(size), verbose=False)[0]) for size in SIZES}


@case
def two_loaders(make: Callable[..., pl.Trainer]) -> Any:
    return [
        numbers(make().validate(Model(True), [loader(a, 4), loader(b)], verbose=False)[n])
        for a, b in ((13, 3), (1, 7), (7, 1))
        for n in (0, 1)
    ]


@case
def part_of_the_batches(make: Callable[..., pl.Trainer]) -> Any:
    limited = [(limit, loader(13)) for limit in (1, 3, 0.3, 0.5, 0.9)]
    return [
        numbers(make(limit_val_batches=limit).validate(Model(), whole, verbose=False)[0])
        for limit, whole in (*limited, (1.0, loader(13, 4, drop_last=True)))
    ]


class Pairs(BatchSampler):
    """A batch sampler of the user's own."""

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(self.sampler)
        return iter([indices[:1], *(indices[n : n + 2] for n in range(1, len(indices), 2))])

    def __len__(self) -> int:
        return 1 + len(range(1, len(self.sampler), 2))  # type: ignore[arg-type]  # it is sized


@case
def own_batch_sampler(make: Callable[..., pl.Trainer]) -> Any:
    class Data(pl.LightningDataModule):
        def val_dataloader(self) -> Any:
            whole = data(7)
            return DataLoader(whole, batch_sampler=Pairs(torch.utils.data.SequentialSampler(whole), 2, False))

    return numbers(make().validate(Model(), datamodule=Data(), verbose=False)[0])


@case
def shuffled(make: Callable[..., pl.Trainer]) -> Any:
    torch.manual_seed(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
    subset = DataLoader(data(13), 1, sampler=SubsetRandomSampler(range(9)))
    logged = [make().validate(Model(), one, verbose=False)[0] for one in (loader(13, 1, shuffle=True), subset)]
    return [numbers(one) for one in logged]


@case
def forward_is_a_collective(make: Callable[..., pl.Trainer]) -> Any:
    class Sharded(Model):
        def forward(self, x: torch.Tensor) -> Any:
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(torch.ones(1))
            return self.net(x)

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
            self(batch[0])
            return super().validation_step(batch, batch_idx)

    return [numbers(make().validate(Sharded(), loader(size), verbose=False)[0]) for size in (1, 5, 13)]


@case
def within_fit(make: Callable[..., pl.Trainer]) -> Any:
    class Still(Model):
        """Trains nothing but BatchNorm's statistics, on rank 0's in every world the same."""

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            batch = [part.to(self.device) for part in data(8)[:8]] if self.global_rank == 0 else batch
            return super().training_step(batch, batch_idx)

    found: list[dict[str, float]] = []

    class Collect(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                found.append(numbers(trainer.callback_metrics))

    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    trainer = make(
        callbacks=[Collect()], max_epochs=2, num_sanity_val_steps=2, limit_train_batches=2, val_check_interval=1
    )
    trainer.fit(Still(), loader(32, 4), [loader(5, **workers), loader(1)])
    return found


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        whole = data(7)
        return (whole[n] for n in range(7))


def predicted(trainer: pl.Trainer, loaders: Any, model: pl.LightningModule | None = None) -> Any:
    """Predict; on ranks, gather what each returned as the driver would."""
    outputs = trainer.predict(model or Model(), loaders)
    if not isinstance(trainer.strategy, ExactEvaluation):
        return outputs
    gathered: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(gathered, outputs)
    return interleave(gathered, trainer.strategy.prediction_splits)


@case
def predictions(make: Callable[..., pl.Trainer]) -> Any:
    whole = [predicted(make(), loader(size, batch, drop_last=True)) for size in SIZES for batch in (2, 4)]
    in_part = [predicted(make(limit_predict_batches=limit), loader(13)) for limit in (3, 0.5)]
    return whole, in_part, predicted(make(), [loader(5), loader(1)])


@case
def predictions_of_a_stream(make: Callable[..., pl.Trainer]) -> Any:
    streams = [DataLoader(Stream(), batch_size=2), DataLoader(Stream(), batch_size=4, num_workers=1)]
    return [predicted(make(limit_predict_batches=limit), stream) for limit in (1.0, 3) for stream in streams]


@case
def indices_for_writers(make: Callable[..., pl.Trainer]) -> Any:
    class Writer(BasePredictionWriter):
        def __init__(self) -> None:
            super().__init__("batch_and_epoch")
            self.batches: list[Any] = []

        def write_on_batch_end(
            self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, *_: Any
        ) -> None:
            self.batches.append((tuple(batch_indices), prediction))

        def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            assert [tuple(one) for one in batch_indices[0]] == [indices for indices, _ in self.batches]

    class Finding(Model):
        """Looks its prediction writer up in each step, as pytorch-forecasting does."""

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
            trainer: Any = self.trainer
            (found,) = (one for one in trainer.callbacks if isinstance(one, BasePredictionWriter))
            assert found.interval.on_batch
            return super().predict_step(batch, batch_idx, dataloader_idx)

    writer = Writer()
    predicted(make(callbacks=[writer]), loader(5), Finding())
    found = [writer.batches]
    if torch.distributed.is_initialized():
        found = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(found, writer.batches)
    return sorted((batch for rank in found for batch in rank), key=lambda batch: batch[0])


class Usual(pl.LightningModule):
    """Keeps what its steps return, and makes one number of it at the end, as most models do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.kept: dict[str, list[torch.Tensor]] = {"loss": []}
        self.by_loader: dict[int, list[torch.Tensor]] = {}
        self.right = self.total = 0

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        logits = self.net(batch[0])
        self.kept["loss"].append(torch.nn.functional.cross_entropy(logits, batch[1]))
        self.by_loader.setdefault(dataloader_idx, []).append(logits)
        self.right += int((logits.argmax(1) == batch[1]).sum())
        self.total += len(logits)

    def on_validation_epoch_end(self) -> None:
        self.log("kept", torch.stack(self.kept["loss"]).sum(), reduce_fx="sum", sync_dist=True)
        self.log("worst", torch.stack(self.kept["loss"]).max(), reduce_fx="max", sync_dist=True)
        self.log("rows", float(torch.cat(self.by_loader[0]).shape[0]), reduce_fx="sum", sync_dist=True)
        self.log("right", self.right / self.total * self.total, reduce_fx="sum", sync_dist=True)
        self.log("share", self.trainer.strategy.reduce(torch.tensor(1.0), reduce_op="mean"))
        self.kept["loss"].clear()
        self.by_loader.clear()
        self.right = self.total = 0

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.kept["loss"].append(self.net(batch[0]))
        return self.kept["loss"][-1]

    def on_predict_epoch_end(self) -> None:
        assert torch.cat(self.kept["loss"]).shape[1] == 2
        self.kept["loss"].clear()


@case
def fewer_batches_than_ranks(make: Callable[..., pl.Trainer]) -> Any:
    model, trainer = Usual(), make()
    found: list[Any] = [
        [numbers(run(model, data, verbose=False)[n]) for n in range(len(data))]
        for run in (trainer.validate, trainer.test)
        for data in ([loader(1)], [loader(3)])
    ]
    return found, predicted(trainer, loader(2), model)


class Named(pl.LightningModule):
    """Logs names for some batches only, of which ranks have others, and a metric only if it has something."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = torchmetrics.MeanMetric()

    def on_validation_epoch_end(self) -> None:
        if self.metric.update_called:
            self.log("metric", self.metric.compute())
            self.metric.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        self.metric.update(x.mean(), weight=len(x))
        self.log("long" if len(x) == 2 else "short", x.sum(), sync_dist=True, batch_size=len(x))
        if float(x[0, 0]) > 0:
            self.log("positive", x[0, 0], reduce_fx="max", sync_dist=True)


@case
def names_of_some_batches(make: Callable[..., pl.Trainer]) -> Any:
    return [numbers(make().validate(Named(), loader(size), verbose=False)[0]) for size in (1, 3, 5, 7)]


class Split(IterableDataset[Any]):
    """Splits itself by rank, as litdata and WebDataset do."""

    def __init__(self, sized: bool) -> None:
        if sized:
            self.__class__ = Sized

    def mine(self) -> range:
        met = torch.distributed.is_initialized()
        rank, size = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if met else (0, 1)
        return range(rank, 7, size)

    def __iter__(self) -> Iterator[Any]:
        whole = data(7)
        return (whole[n][0] for n in self.mine())


class Sized(Split):
    def __len__(self) -> int:
        return len(self.mine())


@case
def predictions_of_data_that_splits_itself(make: Callable[..., pl.Trainer]) -> Any:
    found = [torch.cat(predicted(make(), DataLoader(Split(sized), batch_size=2))) for sized in (False, True)]
    return [sorted(rows.tolist()) for rows in found]


class Gathers(Usual):
    """Calls collectives of its own, ``when`` rank and batch say so; they need as many rows on every rank."""

    def __init__(self, when: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.when = when

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        if self.when(self.global_rank, batch_idx):
            self.last: Any = self.all_gather(batch[0])

    def on_validation_epoch_end(self) -> None:
        rows: Any = self.all_gather(torch.cat(self.by_loader[0]))
        self.log("gathered", rows.square().sum() + self.last.sum())
        super().on_validation_epoch_end()


def train(config: dict[str, Any]) -> None:
    """Run every case on this rank; rank 0 keeps what came out."""
    import tunelight as tl

    def exact(**options: Any) -> pl.Trainer:
        return trainer(strategy=tl.RayStrategy(evaluation="exact"), **options)

    found: dict[str, Any] = {name: one(exact) for name, one in CASES.items()}
    for name, model, rows in (
        ("other", Model(), loader(3 + 4 * tl.get_context().rank)),
        ("unequal", Gathers(lambda rank, batch: True), loader(20, 8)),
        ("conditional", Gathers(lambda rank, batch: rank == 0), loader(8)),
        ("apart", Gathers(lambda rank, batch: rank == batch), loader(32)),
    ):
        try:
            exact().validate(model, rows, verbose=False)
        except StrategyError as error:
            found[name] = str(error)
    torch.save(found, f"{config['path']}-{tl.get_context().rank}")
    tl.report({"loss": 0.0})


def trainer(**options: Any) -> pl.Trainer:
    return pl.Trainer(**options, **QUIET, devices=1)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: one(trainer) for name, one in CASES.items()}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def found(ray4: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("evaluation")
    spec = GangSpec(Reservation(request.param), home=Home.here())
    with Gang.form(spec, None) as gang:
        share_holdings()
        config = {"path": str(folder / "found.pt")}
        _, cause = tasks.run(gang, *tasks.here(folder, cloudpickle.dumps(train), config=config))
        assert cause is None, cause.traceback
    return [torch.load(f"{config['path']}-{rank}", weights_only=False) for rank in range(request.param)]


@pytest.mark.parametrize("name", CASES)
def test_ranks_evaluate_exactly_as_one_process_does(name, found, alone):
    torch.testing.assert_close(found[0][name], alone[name], rtol=1e-6, atol=1e-6)


def test_a_dataset_that_differs_between_ranks_is_refused(found: list[dict[str, Any]]) -> None:
    assert "rank 0 has 2, rank 1 has 4" in found[0]["other"]


@pytest.mark.parametrize("name", ["unequal", "conditional", "apart"])
def test_collectives_of_user_code_that_do_not_fit_are_an_error_on_every_rank(name, found):
    for rank in found:
        assert "all_gather of a float32 tensor" in rank[name]
        assert "evaluation='ddp'" in rank[name]
