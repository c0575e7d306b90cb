"""How the batches of a full gang are played by fewer workers, from anywhere in an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from tunelight.lightning.exact.train_batches import DataParts, TrainingBatches, TurnLoader

sizes, worlds, batch_sizes = st.integers(1, 60), st.integers(1, 5), st.integers(1, 7)


@contextlib.contextmanager
def play(part: int) -> Iterator[None]:
    yield


def of_torch(size: int, whole: int, rank: int, batch: int, drop_last: bool = False) -> BatchSampler:
    numbers: Any = range(size)
    sampler: DistributedSampler[int] = DistributedSampler(numbers, whole, rank, seed=3)
    sampler.set_epoch(2)
    return BatchSampler(sampler, batch, drop_last)


def ours(size: int, parts: DataParts, batch: int, drop_last: bool = False, start: int = 0, **options: Any) -> Any:
    inner: Any = of_torch(size, parts.total, parts.worker, batch, drop_last)
    batches = TrainingBatches(inner, inner.sampler, parts, play, **options)
    batches.start = start
    return batches


@given(sizes, worlds, worlds, batch_sizes, st.booleans())
def test_fewer_workers_play_every_part_once_a_step(size, whole, workers, batch, drop_last) -> None:
    workers = min(workers, whole)
    full = [list(of_torch(size, whole, rank, batch, drop_last)) for rank in range(whole)]
    for worker in range(workers):
        parts = DataParts(whole, workers, worker)
        mine = ours(size, parts, batch, drop_last)
        steps = [list(step) for step in zip(*[iter(list(mine))] * len(parts.played), strict=True)]
        assert steps == [[full[part][step] for part in parts.played] for step in range(len(full[0]))]
        assert len(mine) == len(steps) * len(parts.played)
        assert mine.sampler.rank == worker  # it is as it was


@given(sizes, worlds, worlds, batch_sizes, st.data())
def test_an_epoch_goes_on_where_it_was(size: int, whole: int, workers: int, batch: int, data: Any) -> None:
    workers = min(workers, whole)
    steps = len(of_torch(size, whole, 0, batch))
    done = data.draw(st.integers(0, steps))
    for worker in range(workers):
        parts = DataParts(whole, workers, worker)
        batches = ours(size, parts, batch, start=done * whole * batch)
        rest = list(ours(size, parts, batch))[done * len(parts.played) :]
        assert list(batches) == rest
        assert len(list(batches)) == len(batches)  # the next epoch is whole again
        assert batches.left(done * whole * batch) == steps - done


@given(st.integers(1, 60), worlds, worlds, batch_sizes, st.data())
def test_another_size_goes_on_behind_the_last_sample(size: int, before: int, whole: int, batch: int, data: Any) -> None:
    """Where the batch is not kept (``linear``), the ranks go on with what is left, and repeat nothing but padding."""
    steps = len(of_torch(size, before, 0, batch))
    done = data.draw(st.integers(0, steps - 1))
    start = done * before * batch
    seen = [n for rank in range(before) for one in list(of_torch(size, before, rank, batch))[:done] for n in one]
    ranks = [ours(size, DataParts(whole, whole, rank), batch, start=start) for rank in range(whole)]
    lengths = {one.left(start) for one in ranks}
    rest = [list(one) for one in ranks]
    assert {len(one) for one in rest} == lengths
    if start % (whole * batch) == 0:
        return  # then the full gang's own padding applies
    flat = [n for one in rest for indices in one for n in indices]
    assert set(seen) | set(flat) == set(range(size))
    assert len(seen) + len(flat) < size + before + whole


@given(sizes, worlds, worlds, batch_sizes)
def test_by_hand_each_rank_has_its_even_share_of_the_global_batch(size, whole, workers, batch) -> None:
    workers = min(workers, whole)
    full = [list(of_torch(size, whole, rank, batch)) for rank in range(whole)]
    if whole == workers:
        return
    shares = [list(ours(size, DataParts(whole, workers, worker), batch, joined=True)) for worker in range(workers)]
    for step in range(len(full[0])):
        assert sorted(n for one in shares for n in one[step]) == sorted(n for one in full for n in one[step])
        lengths = {len(one[step]) for one in shares}
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_hands_out_steps_and_keeps_the_other_turns(workers: int) -> None:
    parts = DataParts(4, 2, 1)
    data: Any = torch.arange(32)
    inner: Any = of_torch(32, 4, 1, 2)
    batches: Any = TrainingBatches(inner, inner.sampler, parts, play)
    loader = TurnLoader(DataLoader(data, batch_sampler=batches, num_workers=workers), parts, play, cut=True)
    assert len(loader) == 4
    for step, first in enumerate(loader):
        wanted = [list(of_torch(32, 4, rank, 2))[step] for rank in (1, 3)]
        assert [batch.tolist() for batch in loader.group(0)] == wanted
        assert first is loader.group(0)[0]


def test_data_without_indices_is_read_over() -> None:
    loader = TurnLoader(range(10), DataParts(2, 1, 0), play, cut=False, over=2)
    assert list(loader) == [4, 6, 8]
    assert list(loader) == [0, 2, 4, 6, 8]
