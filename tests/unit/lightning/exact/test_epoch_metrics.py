"""What was logged of an epoch, kept and put back on as many ranks as there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchmetrics

from tests import flavours
from tunelight.lightning.exact import epoch_metrics


def trainer() -> Any:
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(_results=flavours.result_collection()(training=True)))
    strategy = SimpleNamespace(root_device=torch.device("cpu"), reduce=lambda value, **_: value)
    module = torch.nn.Module()
    return SimpleNamespace(
        fit_loop=loop, strategy=strategy, lightning_module=module, _logger_connector=SimpleNamespace()
    )


def log(one: Any, value: float, size: int, sync: bool = True) -> None:
    results = one.fit_loop.epoch_loop._results
    options: Any = {"sync_dist": sync, "sync_dist_fn": one.strategy.reduce}
    results.log("training_step", "loss", torch.tensor(value), batch_size=size, on_step=True, **options)


def held(one: Any) -> tuple[float, int]:
    metric = one.fit_loop.epoch_loop._results["training_step.loss"]
    return float(metric.value), int(metric.cumulated_batch_size)


def ranks(sync: bool = True) -> list[Any]:
    made = [trainer() for _ in range(3)]
    for number, one in enumerate(made):
        log(one, number + 1.0, 4, sync)
    return [epoch_metrics.state(one.fit_loop.epoch_loop._results) for one in made]


def test_a_rank_goes_on_with_what_it_had() -> None:
    one = trainer()
    epoch_metrics.put(one, epoch_metrics.shared_out(ranks(), 1, 3), pytest.fail)
    log(one, 1.0, 4)  # under the same conditions, or Lightning would refuse it
    assert held(one) == (12.0, 8)


@pytest.mark.parametrize(("sync", "value"), [(True, 16.0), (False, 4.0)])
def test_a_smaller_gang_has_the_shares_of_all_where_they_are_reduced(sync: bool, value: float) -> None:
    one = trainer()
    epoch_metrics.put(one, epoch_metrics.shared_out(ranks(sync), 0, 2), pytest.fail)
    assert held(one) == (value, 8 if sync else 4)


@pytest.mark.parametrize(("sync", "expected"), [(True, (0.0, 0)), (False, (4.0, 4))])
def test_a_new_rank_reduces_what_the_others_reduce(sync: bool, expected: tuple[float, int]) -> None:
    one = trainer()
    epoch_metrics.put(one, epoch_metrics.shared_out(ranks(sync), 3, 4), pytest.fail)
    assert held(one) == expected


class Unmergeable(torchmetrics.MeanMetric):
    """Cannot take over what another has gathered."""

    def merge_state(self, incoming_state: Any) -> None:
        raise RuntimeError("not this one")


def of_a_metric(kind: Any) -> Any:
    one = trainer()
    one.lightning_module.accuracy = kind()
    one.lightning_module.accuracy.update(1.0)
    results = one.fit_loop.epoch_loop._results
    results.log("training_step", "accuracy", one.lightning_module.accuracy, metric_attribute="accuracy")
    return one


def test_a_metric_takes_over_the_share_of_a_worker_that_is_gone() -> None:
    states = [epoch_metrics.state(of_a_metric(torchmetrics.MeanMetric).fit_loop.epoch_loop._results) for _ in range(2)]
    one = of_a_metric(torchmetrics.MeanMetric)
    epoch_metrics.put(one, states, pytest.fail)
    assert float(one.lightning_module.accuracy.weight) == 2


def test_a_share_that_cannot_be_taken_over_is_said() -> None:
    states = [epoch_metrics.state(of_a_metric(Unmergeable).fit_loop.epoch_loop._results) for _ in range(2)]
    one, said = of_a_metric(Unmergeable), list[str]()
    epoch_metrics.put(one, states, said.append)
    (line,) = said
    assert line.startswith("The metric 'accuracy' lacks a share of a worker that is gone in this epoch: ")
    assert line.endswith("Unmergeable cannot merge states (RuntimeError: not this one).")


def test_a_metric_that_the_model_has_no_more_is_said() -> None:
    states = [epoch_metrics.state(of_a_metric(torchmetrics.MeanMetric).fit_loop.epoch_loop._results)]
    one, said = trainer(), list[str]()
    epoch_metrics.put(one, states, said.append)
    (line,) = said
    assert line.startswith("The metric 'accuracy' lacks a share from before the restart in this epoch: ")
    assert line.endswith("the model has no 'accuracy' any more.")


def test_ranks_agree_on_names_that_only_some_batches_have_logged() -> None:
    """Rank 0 has logged "even" and rank 1 "odd": both reduce both, in one order."""
    trainers: list[Any] = []
    for name, value in (("even", 1.0), ("odd", 2.0)):
        results = flavours.result_collection()(training=False)
        for key, sync in ((name, True), (f"own_{name}", False)):
            results.log(
                "validation_step", key, torch.tensor(value), sync_dist=sync, sync_dist_fn=lambda one, **_: one,
                batch_size=2,
            )  # fmt: skip
        strategy = SimpleNamespace(reduce=None, root_device=torch.device("cpu"))
        trainers.append(SimpleNamespace(_results=results, strategy=strategy, lightning_module=None))
    said: list[Any] = []

    class HeardError(Exception):
        """Ends a rank's part at its gathering."""

    def hear(mine: Any) -> Any:
        said.append(mine)
        raise HeardError

    for trainer in trainers:
        with pytest.raises(HeardError):
            epoch_metrics.agree(trainer, hear)
    for trainer in trainers:
        epoch_metrics.agree(trainer, lambda _: said)
    of_rank = [list(trainer._results) for trainer in trainers]
    assert of_rank[0] == ["validation_step.even", "validation_step.own_even", "validation_step.odd"]
    assert [name for name in of_rank[1] if "own" not in name] == ["validation_step.even", "validation_step.odd"]
    for name, mean in (("even", 1.0), ("odd", 2.0)):
        metrics = [trainer._results[f"validation_step.{name}"] for trainer in trainers]
        assert sum(one.value for one in metrics) / sum(one.cumulated_batch_size for one in metrics) == mean
