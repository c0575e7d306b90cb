"""Evaluation on 2 and 4 ranks: exact, as by a plain Trainer in this process; and by default, as by Lightning's DDP.

One gang of each size runs all of `CASES` and `AS_DDP`, in one task; each test then compares one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import share_holdings
from tests.integration.evaluating import CASES, Case, Finding, Model, Split, Stream, Updated, Usual, loader, numbers
from tests.kit import tasks
from tunelight.compat.lightning import BasePredictionWriter, DDPStrategy, pl
from tunelight.errors import StrategyError
from tunelight.gang.gang import Gang
from tunelight.gang.spec import GangSpec
from tunelight.lightning.strategies.base import GangEnvironment
from tunelight.messages import Ended, Place
from tunelight.resources import Reservation
from tunelight.session.session import get_session
from tunelight.session.task import Home

# --- what Lightning's DDP does ----------------------------------------------------------------------------

AS_DDP: dict[str, Case] = {}


def as_ddp(function: Case) -> Case:
    AS_DDP[function.__name__] = function
    return function


class Gathers(Usual):
    """Calls collectives of its own, which need as many rows on every rank."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        self.last: Any = self.all_gather(batch[0])

    def on_validation_epoch_end(self) -> None:
        rows: Any = self.all_gather(torch.cat(self.by_loader[0]))
        self.log("gathered", rows.square().sum() + self.last.sum())
        super().on_validation_epoch_end()


@as_ddp
def gathers_of_its_own(make: Callable[..., pl.Trainer]) -> Any:
    return [numbers(make().validate(Gathers(), loader(size, 8), verbose=False)[0]) for size in (20, 1, 33)]


@as_ddp
def a_metric_computed_if_updated(make: Callable[..., pl.Trainer]) -> Any:
    return [numbers(make().validate(Updated(), loader(size), verbose=False)[0]) for size in (1, 4, 5)]


@as_ddp
def logged_in_every_way(make: Callable[..., pl.Trainer]) -> Any:
    trainer = make(limit_val_batches=2)
    return [numbers(one) for one in trainer.validate(Model(True), [loader(13), loader(5)], verbose=False)]


@as_ddp
def an_iterable_dataset(make: Callable[..., pl.Trainer]) -> Any:
    split: Any = DataLoader(Split(True), batch_size=2)
    return numbers(make().validate(Usual(), DataLoader(Stream(), batch_size=2), verbose=False)[0]), make().predict(
        Model(), split
    )


@as_ddp
def predictions_of_a_rank(make: Callable[..., pl.Trainer]) -> Any:
    class Writer(BasePredictionWriter):
        def __init__(self) -> None:
            super().__init__("batch")
            self.indices: list[Any] = []

        def write_on_batch_end(
            self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, *_: Any
        ) -> None:
            self.indices.append(list(batch_indices))

    writer = Writer()
    return make(callbacks=[writer]).predict(Finding(), loader(7)), writer.indices


# --- running them -----------------------------------------------------------------------------------------


class OnRankZero(Usual):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        if self.global_rank == 0:
            self.all_gather(batch[0])


def train(config: dict[str, Any]) -> None:
    """Run every case on this rank; rank 0 keeps what came out."""
    import tunelight as tl

    def exact(**options: Any) -> pl.Trainer:
        return trainer(strategy=tl.RayStrategy(evaluation="exact"), **options)

    found: dict[str, Any] = {name: one(exact) for name, one in CASES.items()}
    for name, model, rows in (
        ("other", Model(), loader(3 + 4 * tl.get_context().rank)),
        ("unequal", Gathers(), loader(20, 8)),
        ("conditional", OnRankZero(), loader(8)),
    ):
        try:
            exact().validate(model, rows, verbose=False)
        except StrategyError as error:
            found[name] = str(error)
    place = get_session().place
    for name, one in AS_DDP.items():
        found[name] = one(lambda **options: trainer(strategy=tl.RayStrategy(), **options))
        found[f"{name} there"] = one(lambda **options: trainer(strategy=LightningsOwn(place), **options))
    torch.save(found, f"{config['path']}-{place.rank}")
    tl.report({"loss": 0.0})


class LightningsOwn(DDPStrategy):
    """Lightning's DDP, told of the ranks that are there."""

    backend, _of_tunelight = "ddp", True  # it would be refused in a gang

    def __init__(self, place: Place) -> None:
        super().__init__(cluster_environment=GangEnvironment(place), parallel_devices=[torch.device("cpu")])

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}


def trainer(**options: Any) -> pl.Trainer:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options.update(dict.fromkeys(quiet, False), accelerator="cpu", devices=1)
    return pl.Trainer(**options)


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
        gang.start(*tasks.here(folder, cloudpickle.dumps(train), config=config))
        while gang.running:
            event = gang.next_event(60)
            if isinstance(event, Ended) and event.error is not None:
                pytest.fail(gang.fail(event.error)[0].traceback)
    return [torch.load(f"{config['path']}-{rank}", weights_only=False) for rank in range(request.param)]


@pytest.mark.parametrize("name", CASES)
def test_ranks_evaluate_exactly_as_one_process_does(
    name: str, found: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    torch.testing.assert_close(found[0][name], alone[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", AS_DDP)
def test_ranks_evaluate_by_default_as_under_lightning_s_ddp(name: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        torch.testing.assert_close(rank[name], rank[f"{name} there"], rtol=0, atol=0)


def test_a_dataset_that_differs_between_ranks_is_refused(found: list[dict[str, Any]]) -> None:
    assert "rank 0 has 2, rank 1 has 4" in found[0]["other"]


@pytest.mark.parametrize("name", ["unequal", "conditional"])
def test_collectives_of_user_code_that_do_not_fit_are_an_error_on_every_rank(
    name: str, found: list[dict[str, Any]]
) -> None:
    for rank in found:
        assert "all_gather of a float32 tensor" in rank[name]
        assert "evaluation='ddp'" in rank[name]
