"""How batches are dealt to ranks, put together again, and how a borrowed step is undone."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from tests import flavours
from tests.kit.training import QUIET
from tunelight.compat.lightning import pl, sized_len
from tunelight.errors import StrategyError
from tunelight.lightning.exact.eval_shards import BatchShare, StreamShare, batches_kept, interleave
from tunelight.lightning.exact.evaluation import remember, remember_attributes, remember_logged
from tunelight.lightning.strategies.training import RayStrategy
from tunelight.messages import Terminal
from tunelight.settings.backends import BACKENDS

sizes = st.integers(0, 40)
worlds = st.integers(1, 6)
limits = st.one_of(st.integers(1, 50), st.floats(0.01, 1.0))


def batch_sampler(size: int, batch: int = 2) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(size)), batch, drop_last=False)


def shares(size: int, world: int, **options: Any) -> list[BatchShare]:
    inner = batch_sampler(size)
    return [BatchShare(inner, inner.sampler, world, rank, **options) for rank in range(world)]


@given(sizes, worlds, limits)
def test_limits_leave_the_batches_that_they_leave_in_one_process(size: int, world: int, limit: int | float) -> None:
    whole = list(batch_sampler(size))
    kept = batches_kept(len(whole), limit)
    if kept == 0:
        return
    own, lengths = [], set()
    for share in shares(size, world, limit=limit):
        turns = batches_kept(len(share), limit)  # Lightning limits what it is told once more
        own.append([batch for turn, batch in enumerate(share) if share.owns(turn) and turn < (turns or 0)])
        lengths.add((len(share), len(list(share)), turns))
    assert interleave(own) == whole[:kept]
    assert len(lengths) == 1, "all ranks take equally many turns"


def test_random_orders_are_the_same_on_all_ranks_and_leave_the_generators_alone() -> None:
    orders = []
    for rank in (0, 1):
        torch.manual_seed(rank)
        random.seed(rank)
        before = (torch.get_rng_state(), random.getstate())
        inner = BatchSampler(RandomSampler(range(9)), 1, drop_last=False)
        orders.append(list(BatchShare(inner, inner.sampler, 2, rank, seed=7)))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
    dealt = [index for turn in zip(*orders, strict=True) for (index,) in turn]
    assert sorted(dealt[:9]) == list(range(9))


def test_the_epoch_reaches_the_sampler_and_changes_the_order() -> None:
    numbers: Any = range(20)
    sampler: Any = torch.utils.data.DistributedSampler(numbers, num_replicas=1, rank=0)
    share = BatchShare(sampler, sampler, 1, 0, seed=0)
    first = list(share)
    share.set_epoch(1)
    assert sampler.epoch == 1
    assert list(share) != first


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


@pytest.mark.parametrize("limit", [1.0, 3])
def test_a_stream_is_dealt_though_nobody_knows_its_length(limit: int | float) -> None:
    whole = list(DataLoader(Numbers(), batch_size=2))[: 3 if limit == 3 else None]
    own = []
    for rank in range(3):
        share = StreamShare(DataLoader(Numbers(), batch_size=2), 3, rank, limit)
        batches = list(share)
        own.append([batch.tolist() for turn, batch in enumerate(batches) if share.owns(turn)])
        assert len(batches) == (1 if limit == 3 else 2)
        assert sized_len(share) is None
    assert interleave(own) == [batch.tolist() for batch in whole]


def test_containers_are_put_back_in_place_at_any_depth() -> None:
    value: dict[str, Any] = {
        "list": [1, [2]],
        "lists": defaultdict(list, a=[1]),
        "sum": torch.ones(2),
        "set": {1},
        "last": deque([1], maxlen=1),
    }
    parts = dict(value)
    back = remember(value)
    value["list"][1].append(3)
    value["list"].append(4)
    value["lists"]["a"].append(2)
    value["lists"]["b"].append(2)
    value["sum"] += 1
    value["set"].add(2)
    value["last"].append(2)
    value["new"] = 0
    assert back() is value
    assert value.pop("sum").tolist() == [1, 1]
    assert value == {"list": [1, [2]], "lists": {"a": [1]}, "set": {1}, "last": deque([1])}
    assert all(value[name] is parts[name] for name in value)


def test_modules_callbacks_and_metrics_are_put_back_and_a_metric_gathers_with_the_others_shape() -> None:
    module: Any = torch.nn.BatchNorm1d(2)
    module.count, module.total, module._defaults, module._computed = 1, torch.zeros(1), {"a": 1}, []
    callback = SimpleNamespace(_parameters=[1], my_hooks=[])
    mean, cat = torchmetrics.MeanMetric(), torchmetrics.CatMetric()
    mean.update(2.0)
    backs = [remember_attributes(one) for one in (module, callback, mean, cat)]
    module(torch.randn(4, 2))
    module.count, weight = 2, module.weight
    module.total += 1
    for changed in (module._computed, callback._parameters, callback.my_hooks):
        changed.append(2)
    mean.update(8.0)
    cat.update(torch.ones(3))
    for back in backs:
        back()
    assert module.running_mean.tolist() == [0, 0]
    assert (module.count, module.total.tolist(), module._computed) == (1, [0], [])
    assert module.weight is weight
    assert (callback._parameters, callback.my_hooks) == ([1], [])
    assert mean.compute() == 2
    assert [rows.shape for rows in cat.value] == [(0,)]


def logged(results: Any, name: str, value: float, fx: Any = torch.mean, sync: bool = True) -> None:
    results.log(
        "validation_step", name, torch.tensor(value), reduce_fx=fx, sync_dist=sync, sync_dist_fn=plain, batch_size=2
    )


def plain(value: Any, **_: Any) -> Any:
    return value


def test_what_a_borrowed_step_logs_is_taken_back() -> None:
    results = flavours.result_collection()(training=False)
    logged(results, "before", 3.0)
    back = remember_logged(results)
    logged(results, "before", 9.0)
    logged(results, "mean", 9.0)
    logged(results, "sum", 9.0, torch.sum)
    logged(results, "max", 9.0, torch.max)
    logged(results, "min", 9.0, torch.min)
    logged(results, "own", 9.0, sync=False)
    back()
    metrics = {metric.meta.name: metric for metric in results.values()}
    assert metrics["before"].compute() == 3
    assert metrics["sum"].compute() == 0
    assert (metrics["max"].compute(), metrics["min"].compute()) == (float("-inf"), float("inf"))
    assert metrics["own"].compute() == 9  # a mean of nothing would be NaN
    assert (metrics["mean"].value, metrics["mean"].cumulated_batch_size) == (0, 0)
    assert not any(metric.has_reset for metric in metrics.values())  # all ranks reduce the same keys


class Counting(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.metric = torchmetrics.MeanMetric()
        self.kept: list[int] = []

    def count(self, value: int) -> None:
        self.kept.append(value)
        self.metric.update(value)


def with_trainer(strategy: Any, evaluation: str | None = "exact") -> Any:
    """Return a rank's strategy, with a model in its Trainer."""
    made = strategy(evaluation=evaluation)
    made._lightning_module = Counting()
    made._lightning_module.trainer = pl.Trainer(strategy=made, **QUIET)
    return made


def test_borrowed_results_are_gone_once_the_rank_has_a_batch_of_its_own(join: Any) -> None:
    join()
    borrower = with_trainer(RayStrategy)
    module, loop = borrower.lightning_module, borrower._trainer().validate_loop
    loop._combined_loader = pl.utilities.combined_loader.CombinedLoader(
        [DataLoader(range(n), batch_sampler=shares(n, 2)[1]) for n in (2, 4)],  # type: ignore[arg-type]
        "sequential",
    )
    for one in loop._combined_loader.flattened:
        assert list(one)
    for loader, value in ((0, 8), (1, 3)):  # rank 1 has no batch of the first loader, and one of the second
        borrower._step(loop, lambda *_, value=value: module.count(value), None, 0, loader, None)
    assert (module.kept, float(module.metric.compute()), module.metric._update_count) == ([3], 3, 1)
    assert borrower._owned is True


@pytest.mark.parametrize(("owned", "borrowing"), [(None, False), (True, False), (False, True)])
def test_what_is_logged_at_the_end_is_left_out_of_a_rank_that_only_borrowed(owned, borrowing) -> None:
    strategy: Any = RayStrategy(num_workers=2)
    strategy._owned = owned
    assert strategy._epoch_end(SimpleNamespace(_results=None), lambda: strategy.borrowing) is borrowing
    assert strategy.borrowing is False


@pytest.mark.parametrize(
    ("evaluation", "task", "doing", "exact"),
    [
        (None, {}, "validating", False),
        (None, {"evaluation": "exact"}, "validating", True),  # a setting, or an elastic gang
        ("exact", {}, "testing", True),
        ("ddp", {"evaluation": "exact"}, "validating", False),
        (None, {}, "predicting", False),
        (None, {"terminal": Terminal()}, "predicting", True),  # a driver gets all predictions, in order
        (None, {"terminal": Terminal()}, "validating", False),
        ("ddp", {"terminal": Terminal()}, "predicting", False),
        ("ddp", {"backend": "sharded"}, "predicting", True),  # a sharded forward hangs with fewer batches than others
        ("ddp", {"backend": "sharded"}, "validating", False),
    ],
)
def test_which_evaluation_is_exact(join: Any, evaluation: Any, task: dict[str, Any], doing: str, exact: bool) -> None:
    backend = task.get("backend", "ddp")
    join(**task)
    strategy = with_trainer(BACKENDS[backend].load_strategy(), evaluation)
    setattr(strategy._trainer(), doing, True)
    assert strategy.exact is exact


def test_names_that_are_reduced_at_once_are_compared_too(join: Any) -> None:
    join(rank=1)
    strategy: Any = RayStrategy(evaluation="exact")
    strategy._comparing = True
    first = "self.log('even') with reduce of a float32 tensor of shape ()"
    strategy.gather_objects = lambda mine: [first, mine]
    with pytest.raises(StrategyError, match=r"rank 0: self.log\('even'\).*; rank 1: self.log\('odd'\)"):
        strategy._log(lambda hook, name: strategy.reduce(torch.tensor(1.0)), "validation_step", "odd")


def test_each_forward_of_a_sharded_model_is_compared_and_collectives_with_their_batch(join: Any) -> None:
    join("sharded")
    strategy: Any = BACKENDS["sharded"].load_strategy()(evaluation="exact")
    strategy._comparing = True
    strategy.gather_objects = gather = mock.Mock(side_effect=lambda act: [act])
    loop = SimpleNamespace(_combined_loader=pl.utilities.combined_loader.CombinedLoader([range(4)], "sequential"))
    strategy._step(loop, lambda *_: strategy.barrier(), None, 3, 0, None)
    strategy.barrier()
    where = ", batch 3 of dataloader 0"
    compared = [call.args[0] for call in gather.mock_calls]
    assert compared == [f"a forward of the sharded model{where}", f"barrier{where}", "barrier"]
