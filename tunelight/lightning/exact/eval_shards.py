"""Deals a sequence of batches to the ranks in turns, and puts their predictions together."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, DistributedSampler

from tunelight.compat.lightning import _IndexBatchSamplerWrapper, sized_len
from tunelight.lightning.exact.generators import seeded

T = TypeVar("T")
Limit = int | float
"""Lightning's ``limit_*_batches``: an int is a number of batches, a float a fraction of them."""


class StandIn:
    """Stands in for a loader: Lightning reads and sets attributes of the loader, except for those in ``state``."""

    def __init__(self, loader: Any, **state: Any) -> None:
        vars(self).update(state, loader=loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(self.loader, name, value)


def batches_of(loader: Any) -> Any:
    """Return a loader's batch sampler, its sampler where it has none, or None."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None) if batches is None else batches


def with_batches(loader: Any, batches: Any) -> Any:
    """Return a copy of a DataLoader, which the user may hold, with other batches in place of `batches_of` it."""
    at = "sampler" if loader.batch_sampler is None else "batch_sampler"
    loader = copy.copy(loader)
    vars(loader)[at] = batches  # DataLoader refuses assignment
    return loader


def batches_kept(length: int | None, limit: Limit) -> int | None:
    """Return how many of ``length`` (None: unknown) batches ``limit_*_batches`` leaves one process; None for all."""
    if isinstance(limit, int):
        return limit if length is None else min(length, limit)
    return None if length is None else int(length * limit)


def length_to_report(turns: int, limit: Limit) -> int:
    """Return the shortest length that Lightning, applying ``limit`` once more, reduces to ``turns``."""
    if isinstance(limit, int) or turns == 0:
        return turns
    length = max(0, math.ceil(turns / limit) - 1)
    while int(length * limit) < turns:
        length += 1
    return length


class Dealable:
    """A loader that has all of its data on every rank, and can deal its batches."""

    def dealt(self, parts: int, part: int, limit: Limit) -> Share:
        """Return one rank's share of the batches."""
        raise NotImplementedError


class Share:
    """One rank's share of a sequence of batches, dealt in turns.

    Args:
        parts: the number of ranks, or of groups of ranks that share their data.
        part: the index of this rank or group.
        limit: Lightning's limit for a single process.
    """

    dealt = True
    """False where each rank keeps all that it reads."""

    def __init__(self, parts: int, part: int, limit: Limit = 1.0) -> None:
        self._parts, self._part, self._limit = parts, part, limit
        self._count: int | None = None

    def owns(self, turn: int) -> bool:
        """Return whether this rank's batch of a turn is its own; otherwise it is borrowed."""
        return self._count is None or turn * self._parts + self._part < self._count

    def deal(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield this rank's batch of every turn; the first batch of all if the last turn has none for it."""
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
        """Return the length to report for a sequence of ``batches`` batches."""
        kept = batches_kept(batches, self._limit)
        if not kept:
            return batches  # empty, or too small a fraction, which Lightning refuses for this length
        return length_to_report(math.ceil(kept / self._parts), self._limit)


class BatchShare(Share):
    """Replaces a DataLoader's batch sampler: yields a rank's own batches of indices.

    Args:
        batches: the batch sampler of a single process. sampler: the sampler in it, for which Lightning sets the epoch.
        seed: for samplers that use the process's generators: all ranks must draw the same order.
    """

    def __init__(
        self, batches: Any, sampler: Any, parts: int, part: int, *, limit: Limit = 1.0, seed: int | None = None
    ) -> None:
        super().__init__(parts, part, limit)
        self.batches, self.sampler, self._seed = batches, sampler, seed

    def __iter__(self) -> Iterator[Any]:
        epoch = self.sampler.epoch if isinstance(self.sampler, DistributedSampler) else 0
        with contextlib.nullcontext() if self._seed is None else seeded(self._seed + epoch):
            order = list(itertools.islice(self.batches, batches_kept(sized_len(self.batches), self._limit)))
        return self.deal(order)

    def __len__(self) -> int:
        return self.length(len(self.batches))

    def set_epoch(self, epoch: int) -> None:
        """Pass an epoch on to the sampler, whose order may depend on it."""
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)


class StreamShare(StandIn, Share):
    """Replaces a loader without a sampler: reads all of its batches, and yields a rank's own.

    If the ranks' first batches differ, the data is split by its own code, and each rank keeps all that it reads.

    Args:
        gather: returns every rank's argument, by rank; all ranks begin together. None: every rank reads the same.
    """

    _begun: Iterator[Any] | None
    _gather: Callable[[str], list[str]] | None

    def __init__(
        self,
        loader: Any,
        parts: int,
        part: int,
        limit: Limit = 1.0,
        *,
        gather: Callable[[str], list[str]] | None = None,
    ) -> None:
        state = {"_parts": parts, "_part": part, "_limit": limit, "_count": None, "_gather": gather, "_begun": None}
        super().__init__(loader, **state, dealt=True)

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        batches, self._begun = self._begun or iter(self.loader), None
        return self.deal(itertools.islice(batches, batches_kept(sized_len(self.loader), self._limit)))

    def __len__(self) -> int:
        length = len(self.loader)
        self._begin()  # it decides which length to report
        return self.length(length)

    def _begin(self) -> None:
        """Find out by the first batches whether the ranks read the same. Called on all ranks together."""
        gather, self._gather = self._gather, None
        if gather is None:
            return
        batches = iter(self.loader)
        first = list(itertools.islice(batches, 1))
        self._begun = itertools.chain(first, batches)
        if len(set(gather(_digest(first)))) > 1:
            self._parts, self._part, self.dealt = 1, 0, False


class _ContentPickler(pickle.Pickler):
    """Pickles tensors by their content alone; torch writes addresses of this process as well."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return tuple, ([str(value.dtype), *value.shape, content],)


def _digest(batches: list[Any]) -> str:
    """Return a text that is the same for equal batches, also in another process; by type if they cannot be pickled."""
    content = io.BytesIO()
    try:
        _ContentPickler(content).dump(batches)
    except Exception:  # noqa: BLE001 - pickling a user's object raises anything
        return repr([type(batch) for batch in batches])
    return hashlib.sha256(content.getvalue()).hexdigest()


def share_of(loader: object) -> Share | None:
    """Return the share in a loader; None if its batches are not dealt."""
    if isinstance(loader, Share):
        return loader
    if not isinstance(loader, DataLoader):
        return None
    batches = batches_of(loader)
    if isinstance(batches, _IndexBatchSamplerWrapper):
        batches = batches._batch_sampler
    return batches if isinstance(batches, Share) else None


def interleave(per_rank: Sequence[Any], split: Sequence[bool] = (True,)) -> list[Any] | None:
    """Return the predictions of all ranks in the order of the dataset, as ``trainer.predict`` of one process.

    Args:
        per_rank: the result of ``trainer.predict`` on each rank.
        split: the strategy's ``prediction_splits``, for each dataloader whether its batches were dealt in turns.
            Outputs of data that the user shards are joined in the order of the ranks.
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
