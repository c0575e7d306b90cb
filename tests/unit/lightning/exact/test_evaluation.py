"""How batches are dealt to ranks, put together again, and how a borrowed step is undone."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from tests import flavours
from tests.kit.training import QUIET
from tunelight.compat.lightning import BasePredictionWriter, pl, sized_len
from tunelight.errors import SettingsError, StrategyError
from tunelight.lightning.exact.borrowed import remember, remember_attributes, remember_logged
from tunelight.lightning.exact.eval_shards import (
    BatchShare,
    Share,
    StreamShare,
    _digest,
    batches_kept,
    interleave,
    length_to_report,
    share_of,
)
from tunelight.lightning.exact.evaluation import _neutral
from tunelight.lightning.strategies.ddp import RayStrategy
from tunelight.settings.backends import BACKENDS

sizes = st.integers(0, 40)
worlds = st.integers(1, 6)
limits = st.one_of(st.integers(1, 50), st.floats(0.01, 1.0))


def batch_sampler(size: int, batch: int = 2) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(size)), batch, drop_last=False)


def shares(size: int, world: int, **options: Any) -> list[BatchShare]:
    inner = batch_sampler(size)
    return [BatchShare(inner, inner.sampler, world, rank, **options) for rank in range(world)]


@given(sizes, worlds)
def test_each_batch_is_owned_once_and_all_ranks_take_equally_many_turns(size: int, world: int) -> None:
    dealt = [(share, list(share)) for share in shares(size, world)]
    own = [[batch for turn, batch in enumerate(batches) if share.owns(turn)] for share, batches in dealt]
    assert interleave(own) == list(batch_sampler(size))
    assert {len(batches) for _, batches in dealt} == {len(share) for share, _ in dealt}


def test_a_rank_without_a_batch_borrows_the_first() -> None:
    first, second = shares(5, 2)
    assert list(first) == [[0, 1], [4]]
    assert list(second) == [[2, 3], [0, 1]]
    assert [second.owns(turn) for turn in (0, 1)] == [True, False]


@given(sizes, worlds, limits)
def test_limits_leave_the_batches_that_they_leave_in_one_process(size: int, world: int, limit: int | float) -> None:
    whole = list(batch_sampler(size))
    kept = batches_kept(len(whole), limit)
    if kept == 0:
        return
    own = []
    for share in shares(size, world, limit=limit):
        turns = batches_kept(len(share), limit)  # Lightning limits what it is told once more
        own.append([batch for turn, batch in enumerate(share) if share.owns(turn) and turn < (turns or 0)])
    assert interleave(own) == whole[:kept]


def test_a_fraction_too_small_is_left_for_lightning_to_refuse() -> None:
    assert [len(share) for share in shares(8, 2, limit=0.1)] == [4, 4]


@given(st.integers(0, 1000), st.floats(0.001, 1.0))
def test_the_length_to_report_gives_the_turns_when_it_is_limited(turns: int, limit: float) -> None:
    assert batches_kept(length_to_report(turns, limit), limit) == turns


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


class Split(IterableDataset[int]):
    """A dataset that splits itself by rank, as litdata and WebDataset do."""

    def __init__(self, rank: int) -> None:
        self.rank, self.passes = rank, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(range(self.rank, 7, 3))

    def __len__(self) -> int:
        return len(range(self.rank, 7, 3))


def test_a_stream_that_splits_itself_is_evaluated_whole() -> None:
    def begun(share: StreamShare) -> str:
        found: list[str] = []
        share._gather = lambda mine: found.append(mine) or [mine]  # type: ignore[func-returns-value]
        share._begin()
        return found[0]

    first = [begun(StreamShare(DataLoader(Split(rank), batch_size=2), 3, rank)) for rank in range(3)]
    data = [Split(rank) for rank in range(3)]
    split = [
        StreamShare(DataLoader(one, batch_size=2), 3, one.rank, gather=lambda mine: [*first, mine]) for one in data
    ]
    lengths = [len(share) for share in split]  # Lightning asks for it first
    own = [[batch.tolist() for batch in share] for share in split]
    assert own == [[[0, 3], [6]], [[1, 4]], [[2, 5]]]
    assert (lengths, [share.dealt for share in split]) == ([2, 1, 1], [False] * 3)
    assert [one.passes for one in data] == [1, 1, 1]
    assert [share.owns(turn) for share, batches in zip(split, own, strict=True) for turn in range(len(batches))] == [
        True
    ] * 4


def test_a_stream_that_all_ranks_read_alike_is_dealt() -> None:
    content = (
        "import torch; from tunelight.lightning.exact.eval_shards import _digest; "
        'print(_digest([{"x": torch.arange(2)}, "a"]))'
    )
    other = subprocess.run([sys.executable, "-c", content], capture_output=True, text=True, check=True).stdout.strip()
    assert other == _digest([{"x": torch.arange(2)}, "a"])
    assert other != _digest([{"x": torch.arange(2) + 1}, "a"])
    same = StreamShare(DataLoader(Numbers(), batch_size=2), 2, 1, gather=lambda mine: [mine, mine])
    assert [batch.tolist() for batch in same] == [[2, 3], [6]]
    assert same.dealt


def test_a_stream_passes_attributes_on_to_its_loader() -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    share = StreamShare(loader, 2, 0)
    share.worker_init_fn = print
    assert loader.worker_init_fn is print
    assert share.batch_size == 2
    assert share_of(share) is share


def test_the_share_in_a_loader_is_found_and_none_where_there_is_none() -> None:
    share = shares(5, 2)[0]
    ready: Any = share
    assert share_of(DataLoader(range(5), batch_sampler=ready)) is share  # type: ignore[arg-type]  # a sized sequence
    assert share_of(DataLoader(range(5))) is None  # type: ignore[arg-type]  # a sized sequence
    users: Any = SimpleNamespace(_batch_sampler=share)
    assert share_of(DataLoader(range(5), batch_sampler=users)) is None  # type: ignore[arg-type]  # a sized sequence
    assert share_of([1, 2]) is None


@pytest.mark.parametrize(
    ("per_rank", "dealt", "whole"),
    [
        ([[["a0", "a2"], ["b0"]], [["a1"], []]], [True, True], [["a0", "a1", "a2"], ["b0"]]),
        ([[1, 2], [3]], [False], [1, 2, 3]),
        ([None, None], [True], None),
        ([[[1, 2], [5]], [[3, 4]]], [True], [[1, 2], [3, 4], [5]]),
    ],
    ids=["of several dataloaders", "split by users", "none", "lists themselves"],
)
def test_outputs_are_put_together_as_they_were_dealt(per_rank: Any, dealt: Any, whole: Any) -> None:
    assert interleave(per_rank, dealt) == whole


# --- no trace ---------------------------------------------------------------------------------------------


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


def test_buffers_attributes_and_parameters_of_a_module() -> None:
    module: Any = torch.nn.BatchNorm1d(2)
    module.count, module.total = 1, torch.zeros(1)
    back = remember_attributes(module)
    module(torch.randn(4, 2))
    module.count, weight = 2, module.weight
    module.total += 1
    back()
    assert module.running_mean.tolist() == [0, 0]
    assert (module.count, module.total.tolist()) == (1, [0])
    assert module.weight is weight


def test_attributes_of_any_name_are_put_back() -> None:
    module: Any = torch.nn.Linear(1, 1)
    module._defaults, module._reductions, module._computed, module.hooks_of_hooks = {"a": 1}, None, [], [1]
    callback = SimpleNamespace(_parameters=[1], my_hooks=[])
    backs = [remember_attributes(module), remember_attributes(callback)]
    for changed in (module._computed, module.hooks_of_hooks, callback._parameters, callback.my_hooks):
        changed.append(2)
    for back in backs:
        back()
    assert (module._computed, module.hooks_of_hooks, callback._parameters, callback.my_hooks) == ([], [1], [1], [])


def test_a_metric_is_put_back_and_gathers_with_the_others_shape() -> None:
    mean, cat = torchmetrics.MeanMetric(), torchmetrics.CatMetric()
    mean.update(2.0)
    backs = [remember_attributes(mean), remember_attributes(cat)]
    mean.update(8.0)
    cat.update(torch.ones(3))
    for back in backs:
        back()
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
    logged(results, "sum", 9.0, torch.sum)
    logged(results, "max", 9.0, torch.max)
    logged(results, "own", 9.0, sync=False)
    back()
    metrics = {metric.meta.name: metric for metric in results.values()}
    assert metrics["before"].compute() == 3
    assert metrics["sum"].compute() == 0
    assert metrics["max"].compute() == float("-inf")
    assert metrics["own"].compute() == 9  # a mean of nothing would be NaN
    assert not any(metric.has_reset for metric in metrics.values())  # all ranks reduce the same keys


def test_a_mean_of_nothing_has_no_weight() -> None:
    results = flavours.result_collection()(training=False)
    back = remember_logged(results)
    logged(results, "loss", 9.0)
    back()
    (metric,) = results.values()
    assert (metric.value, metric.cumulated_batch_size) == (0, 0)


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("sum", torch.int64, 0),
        ("mean", torch.float32, 0),
        ("max", torch.float32, float("-inf")),
        ("min", torch.int32, torch.iinfo(torch.int32).max),
        ("product", torch.float32, 5),
    ],
)
def test_a_neutral_tensor_leaves_a_reduction_as_it_is(op: str, dtype: torch.dtype, expected: float) -> None:
    assert _neutral(torch.tensor(5, dtype=dtype), op) == expected


def test_an_empty_sequence_has_no_turns() -> None:
    empty: Iterable[int] = ()
    share = Share(2, 1)
    assert list(share.deal(empty)) == []
    assert share.length(0) == 0


# --- a rank without a batch, and prediction writers ---------------------------------------------------------


class Writer(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch")
        self.seen: list[Any] = []

    def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *_: Any) -> None:
        self.seen.append(prediction)


class Counting(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.metric = torchmetrics.MeanMetric()
        self.kept: list[int] = []

    def count(self, value: int) -> None:
        self.kept.append(value)
        self.metric.update(value)


class Loop:
    """Stands for one of Lightning's: what a borrowed step adds to is undone."""

    def __init__(self) -> None:
        self._predictions: list[Any] = [[]]
        self.epoch_batch_indices: list[Any] = [[]]


@pytest.fixture
def borrower(join: Any) -> Any:
    """Return a strategy on rank 1 of 2, with a model and a writer in its Trainer."""
    join()
    strategy: Any = RayStrategy(evaluation="exact")
    trainer = pl.Trainer(strategy=strategy, callbacks=[Writer()], **QUIET)
    module = Counting()
    strategy._lightning_module = module
    module.trainer = trainer
    return strategy


def test_prediction_writers_are_there_in_a_borrowed_step_and_write_nothing(borrower: Any) -> None:
    trainer, loop = borrower._trainer(), Loop()
    writer: Any = next(one for one in trainer.callbacks if isinstance(one, Writer))
    with borrower._without_trace(loop):
        assert writer in trainer.callbacks
        writer.on_predict_batch_end(trainer, None, "prediction", None, 0)
        loop._predictions[0].append("prediction")
        loop.epoch_batch_indices[0].append([0])
    assert (writer.seen, loop._predictions, loop.epoch_batch_indices) == ([], [[]], [[]])
    trainer.predict_loop.current_batch_indices = [0]
    writer.on_predict_batch_end(trainer, None, "own", None, 0)
    assert writer.seen == ["own"]


def test_a_rank_without_a_batch_has_its_borrowed_results_at_the_end(borrower: Any) -> None:
    """Code there stacks a list, and computes a metric, only if there is something: on all ranks, or the others wait."""
    module = borrower.lightning_module
    module._defaults = {"margin": 0.1}  # as a metric of torchmetrics has
    with borrower._without_trace(Loop(), keep=True):
        module.count(8)
    assert (module.kept, module.metric.update_called, float(module.metric.weight)) == ([8], True, 0)


def test_borrowed_results_are_gone_once_the_rank_has_a_batch_of_its_own(borrower: Any) -> None:
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
def test_what_is_logged_at_the_end_is_left_out_of_a_rank_that_only_borrowed(
    owned: bool | None, borrowing: bool
) -> None:
    strategy: Any = RayStrategy(num_workers=2)
    strategy._owned = owned
    assert strategy._epoch_end(SimpleNamespace(_results=None), lambda: strategy.borrowing) is borrowing
    assert strategy.borrowing is False


# --- which evaluation, and what the ranks do together -------------------------------------------------------


@pytest.mark.parametrize(
    ("evaluation", "task", "doing", "exact"),
    [
        (None, {}, "validating", False),
        (None, {"evaluation": "exact"}, "validating", True),  # a setting, or an elastic gang
        ("exact", {}, "testing", True),
        ("ddp", {"evaluation": "exact"}, "validating", False),
        (None, {}, "predicting", False),
        (None, {"job": True}, "predicting", True),  # a driver gets all predictions, in order
        (None, {"job": True}, "validating", False),
        ("ddp", {"job": True}, "predicting", False),
        ("ddp", {"backend": "sharded"}, "predicting", True),  # a sharded forward hangs with fewer batches than others
        ("ddp", {"backend": "sharded"}, "validating", False),
    ],
)
def test_which_evaluation_is_exact(join: Any, evaluation: Any, task: dict[str, Any], doing: str, exact: bool) -> None:
    backend = task.pop("backend", "ddp")
    session = join(backend)
    session.task = replace(session.task, **task)
    strategy: Any = BACKENDS[backend].load_strategy()(evaluation=evaluation)
    trainer = pl.Trainer(strategy=strategy, **QUIET)
    setattr(trainer, doing, True)
    strategy._lightning_module = Counting()
    strategy._lightning_module.trainer = trainer
    assert strategy.exact is exact


def test_evaluation_has_two_ways() -> None:
    with pytest.raises(SettingsError, match=r"evaluation must be 'ddp' .* 'exact' .* not 'padded'"):
        RayStrategy(evaluation="padded")  # type: ignore[arg-type]


def test_collectives_that_differ_between_ranks_are_an_error_that_names_the_setting(join: Any) -> None:
    session = join(rank=1)
    strategy: Any = RayStrategy(evaluation="exact")
    strategy._lightning_module, strategy._comparing = Counting(), True
    strategy._lightning_module._current_fx_name = "validation_step"
    session.lockstep._channel.broadcast(
        "act/0/0/1", "all_gather of a float32 tensor of shape (8, 1) in validation_step"
    )
    with pytest.raises(StrategyError, match=r"rank 0: .*\(8, 1\).*; rank 1: .*\(4, 1\) in .*evaluation='ddp'"):
        strategy.all_gather(torch.ones(4, 1))


def test_names_that_are_reduced_at_once_are_compared_too(join: Any) -> None:
    session = join(rank=1)
    strategy: Any = RayStrategy(evaluation="exact")
    strategy._comparing = True
    session.lockstep._channel.broadcast("act/0/0/1", "self.log('even') with reduce of a float32 tensor of shape ()")
    with pytest.raises(StrategyError, match=r"rank 0: self.log\('even'\).*; rank 1: self.log\('odd'\)"):
        strategy._log(lambda hook, name: strategy.reduce(torch.tensor(1.0)), "validation_step", "odd")
