"""Dealing a sequence of batches to the ranks in turns, and putting together what they made of them."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from tunelight.compat.lightning import sized_len

T = TypeVar("T")
Limit = int | float
"""Lightning's ``limit_*_batches``: an int is a number of batches, a float a fraction of them."""


def batches_kept(length: int | None, limit: Limit) -> int | None:
    """Return how many of ``length`` batches one process would run under Lightning's ``limit_*_batches``.

    None stands for a length that nobody knows, and for all of them.
    """
    if isinstance(limit, int):
        return limit if length is None else min(length, limit)
    return None if length is None else int(length * limit)


def length_to_report(turns: int, limit: Limit) -> int:
    """Return the shortest length of which Lightning, applying ``limit`` to it once more, makes ``turns``."""
    if isinstance(limit, int) or turns == 0:
        return turns
    length = max(0, math.ceil(turns / limit) - 1)
    while int(length * limit) < turns:
        length += 1
    return length


class Share:
    """One rank's share of a sequence of batches, dealt in turns.

    Args:
        parts: how many ranks it is dealt to (to groups of ranks, where a group shares its data).
        part: which of them this rank is.
        limit: Lightning's limit for one process.
    """

    def __init__(self, parts: int, part: int, limit: Limit = 1.0) -> None:
        self._parts, self._part, self._limit = parts, part, limit
        self._count: int | None = None

    def owns(self, turn: int) -> bool:
        """Tell whether the batch that was dealt in a turn is this rank's own; else it is borrowed."""
        return self._count is None or turn * self._parts + self._part < self._count

    def deal(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield this rank's batch of every turn; the first of all where the last turn has none for it."""
        self._count = None
        count, first, mine = 0, list[T](), list[T]()
        for batch in batches:
            first = first or [batch]
            if count % self._parts == self._part:
                mine = [batch]
            count += 1
            if count % self._parts == 0:
                yield mine[0]
        self._count = count
        if left := count % self._parts:
            yield mine[0] if self._part < left else first[0]

    def length(self, batches: int) -> int:
        """Return the length to report for a sequence of that many batches."""
        kept = batches_kept(batches, self._limit)
        if not kept:
            return batches  # empty, or so small a fraction that Lightning refuses it when it sees this length
        return length_to_report(math.ceil(kept / self._parts), self._limit)


class BatchShare(Share):
    """Stands where a DataLoader's batch sampler stood: batches of indices of which a rank sees its own.

    Args:
        batches: the batch sampler of one process. sampler: the sampler in it, which Lightning tells the epoch.
        seed: for samplers that draw from torch's or Python's generator: all ranks must draw the same order.
    """

    def __init__(
        self, batches: Any, sampler: Any, parts: int, part: int, *, limit: Limit = 1.0, seed: int | None = None
    ) -> None:
        super().__init__(parts, part, limit)
        self.batches, self.sampler, self._seed = batches, sampler, seed

    def __iter__(self) -> Iterator[Any]:
        with _seeded(None if self._seed is None else self._seed + getattr(self.sampler, "epoch", 0)):
            order = list(itertools.islice(self.batches, batches_kept(sized_len(self.batches), self._limit)))
        return self.deal(order)

    def __len__(self) -> int:
        return self.length(len(self.batches))

    def set_epoch(self, epoch: int) -> None:
        """Pass an epoch on to the sampler, whose order may depend on it."""
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)


class StreamShare(Share):
    """Stands where a loader stood that has no sampler: reads all of its batches, and hands out a rank's own."""

    def __init__(self, loader: Any, parts: int, part: int, limit: Limit = 1.0) -> None:
        vars(self)["loader"] = loader
        super().__init__(parts, part, limit)

    def __iter__(self) -> Iterator[Any]:
        return self.deal(itertools.islice(self.loader, batches_kept(sized_len(self.loader), self._limit)))

    def __len__(self) -> int:
        return self.length(len(self.loader))

    # Lightning reads and sets attributes of the loader: its workers' seeds, and its iterator to shut it down.
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_parts", "_part", "_limit", "_count"):
            vars(self)[name] = value
        else:
            setattr(self.loader, name, value)


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Let torch's CPU generator and Python's start at ``seed`` inside, and go on outside as if nothing had been."""
    if seed is None:
        yield
        return
    python = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)


def share_of(loader: object) -> Share | None:
    """Return the share that stands in a loader; None where it was left as it is."""
    if isinstance(loader, Share):
        return loader
    if not isinstance(loader, DataLoader):
        return None
    batches: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    batches = getattr(batches, "_batch_sampler", batches)
    return batches if isinstance(batches, Share) else None


def interleave(per_rank: Sequence[Any], split: Sequence[bool] = (True,)) -> list[Any] | None:
    """Return the whole of what the ranks predicted, in the order of the dataset.

    Args:
        per_rank: what ``trainer.predict`` returned on each rank: a list of outputs, one for each batch, or with
            several dataloaders a list of such lists.
        split: ``prediction_splits`` of the strategy, one for each dataloader: whether its batches were dealt in
            turns. What its user had split is put together in the order of the ranks.

    Returns what ``trainer.predict`` returns in one process. Runs on: driver or worker.
    """
    if any(outputs is None for outputs in per_rank):
        return None
    if len(split) == 1:
        return _whole(per_rank, split[0])
    return [_whole([outputs[n] for outputs in per_rank], dealt) for n, dealt in enumerate(split)]


def _whole(per_rank: Sequence[Sequence[Any]], dealt: bool) -> list[Any]:
    if not dealt:
        return list(itertools.chain.from_iterable(per_rank))
    missing = object()
    turns = itertools.zip_longest(*per_rank, fillvalue=missing)
    return [output for turn in turns for output in turn if output is not missing]
