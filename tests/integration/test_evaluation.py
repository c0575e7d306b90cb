"""Exact evaluation on 2 and 4 ranks, as by a plain Trainer in this process.

One gang of each size runs all of `CASES`, in one task; each test then compares one of them. That ranks evaluate by
default as under Lightning's DDP is shown by tests/differential.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest
import torch

from tests.conftest import share_holdings
from tests.integration.evaluating import CASES, Model, Usual, loader
from tests.kit import tasks
from tunelight.compat.lightning import pl
from tunelight.errors import StrategyError
from tunelight.gang.gang import Gang
from tunelight.gang.spec import GangSpec
from tunelight.messages import Ended
from tunelight.resources import Reservation
from tunelight.session.task import Home


class Gathers(Usual):
    """Calls collectives of its own, which need as many rows on every rank."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        self.last: Any = self.all_gather(batch[0])

    def on_validation_epoch_end(self) -> None:
        rows: Any = self.all_gather(torch.cat(self.by_loader[0]))
        self.log("gathered", rows.square().sum() + self.last.sum())
        super().on_validation_epoch_end()


class OnRankZero(Usual):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        if self.global_rank == 0:
            self.all_gather(batch[0])


class AtDifferentBatches(Usual):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        if self.global_rank == batch_idx:
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
        ("apart", AtDifferentBatches(), loader(32)),
    ):
        try:
            exact().validate(model, rows, verbose=False)
        except StrategyError as error:
            found[name] = str(error)
    torch.save(found, f"{config['path']}-{tl.get_context().rank}")
    tl.report({"loss": 0.0})


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


def test_a_dataset_that_differs_between_ranks_is_refused(found: list[dict[str, Any]]) -> None:
    assert "rank 0 has 2, rank 1 has 4" in found[0]["other"]


@pytest.mark.parametrize("name", ["unequal", "conditional", "apart"])
def test_collectives_of_user_code_that_do_not_fit_are_an_error_on_every_rank(
    name: str, found: list[dict[str, Any]]
) -> None:
    for rank in found:
        assert "all_gather of a float32 tensor" in rank[name]
        assert "evaluation='ddp'" in rank[name]
