"""Training batches of a rank in a smaller gang: its own, and those of ranks that are missing.

The data has N parts, one for each rank of the full gang. In a gang of M workers, worker r trains on the parts r,
r + M, r + 2M, ... (EasyScale, SC'23, calls them logical workers). So every batch, as BatchNorm or a contrastive loss
sees it, is one of the full gang's, and the global batch of a step stays the same.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from tunelight.compat import replaced
from tunelight.compat.lightning import sized_len
from tunelight.lightning.exact.eval_shards import StandIn

Play = Callable[[int], AbstractContextManager[None]]
"""Returns a context in which a part's random generators are the process's."""


@dataclass(frozen=True)
class DataParts:
    """Which of a full gang's ``total`` parts worker ``worker`` of ``workers`` trains on. All count from 0."""

    total: int
    workers: int
    worker: int

    @property
    def turns(self) -> int:
        """Return the number of parts of the first worker, which is the number of turns of all workers."""
        return -(-self.total // self.workers)

    @property
    def played(self) -> list[int]:
        """Return this worker's parts; the first has the worker's own number."""
        return list(range(self.worker, self.total, self.workers))

    def players(self, turn: int) -> int:
        """Return how many workers have a part in a turn; the others repeat one, which does not count."""
        return min(self.workers, self.total - turn * self.workers)


class Begun(Iterator[Any]):
    """An iterator whose first item can be drawn in advance."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._first: list[Any] | None = None

    def begin(self) -> None:
        """Draw the first item, unless it is drawn already."""
        if self._first is None:
            self._first = list(itertools.islice(self._items, 1))

    def __next__(self) -> Any:
        self.begin()
        return self._first.pop() if self._first else next(self._items)


class TrainingBatches:
    """Replaces a training loader's batch sampler: yields the batches of this worker's parts, in turns.

    Args:
        batches: the batch sampler (or sampler) that yields the batches of one part.
        sampler: the DistributedSampler in it, with ``num_replicas=parts.total``; None for data that the user shards.
        joined: yield one batch in place of ``parts.turns``: the worker's even share of the global batch.
        start: samples of the epoch that are done already; the first iteration leaves them out.
    """

    def __init__(
        self,
        batches: Any,
        sampler: DistributedSampler[Any] | None,
        parts: DataParts,
        play: Play,
        *,
        joined: bool = False,
    ) -> None:
        self.batches, self.parts, self.joined = batches, parts, joined
        self.sampler = sampler if sampler is not None else getattr(batches, "sampler", batches)
        self.start = 0
        self._cut, self._play = sampler, play
        self._running: Begun | None = None

    def __iter__(self) -> Iterator[Any]:
        self._running = Begun(self._batches())
        return self._running

    def begin(self) -> None:
        """Draw the running epoch's order now, not at its first batch."""
        if self._running is not None:
            self._running.begin()

    def _batches(self) -> Iterator[Any]:
        # A generator, like a BatchSampler's: a loader with workers makes two and uses the second; the order must be
        # drawn at the first batch, after the loader's own seed.
        start, self.start = self.start, 0
        if self._cut is None:
            yield from itertools.islice(iter(self.batches), start, None)
        elif self.parts.turns == 1 and (done := self.whole_batches(start)) is not None:
            yield from itertools.islice(iter(self.batches), done, None)
        elif self.joined:
            yield from self._joined(start)
        else:
            dealt = [self._of(part, start) for part in self.parts.played]
            yield from itertools.chain.from_iterable(zip(*dealt, strict=True))

    def __len__(self) -> int:
        return len(self.batches) * (1 if self._cut is None or self.joined else len(self.parts.played))

    @property
    def size(self) -> int | None:
        """Return the number of samples in a part's batch, if it is known."""
        return self.batches.batch_size if type(self.batches) is BatchSampler else None

    def whole_batches(self, start: int) -> int | None:
        """Return the number of global batches in ``start`` samples; None if it is not an integer."""
        batch = (self.size or 1) * self.parts.total
        return None if start % batch else start // batch

    def left(self, start: int) -> int:
        """Return the number of a part's batches after the epoch's first ``start`` samples."""
        if (done := self.whole_batches(start)) is not None:
            return max(0, len(self.batches) - done)
        return len(self._of(0, start))

    def _of(self, part: int, start: int) -> list[Any]:
        """Return a part's batches after the epoch's first ``start`` samples."""
        assert self._cut is not None  # called for samplers of Lightning's only
        with self._play(part):
            if (done := self.whole_batches(start)) is not None:
                with replaced(self._cut, rank=part):
                    return list(self.batches)[done:]
            order = _order(self._cut)
        rest = order[start:]
        rest += (order * (1 + self.parts.total // max(1, len(order))))[: -len(rest) % self.parts.total]
        return list(BatchSampler(rest[part :: self.parts.total], self.size or 1, self.batches.drop_last))

    def _joined(self, start: int) -> Iterator[Any]:
        dealt = [self._of(part, start) for part in range(self.parts.total)]
        for batches in zip(*dealt, strict=True):
            samples = [sample for row in zip(*batches, strict=True) for sample in row]
            yield samples[self.parts.worker :: self.parts.workers]

    def set_epoch(self, epoch: int) -> None:
        """Pass an epoch on to the sampler, whose order depends on it."""
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)


def _order(sampler: DistributedSampler[Any]) -> list[Any]:
    """Return the order of an epoch for a single rank, without padding."""
    size = len(sampler.dataset)  # type: ignore[arg-type]  # a sampler's data set has a length
    with replaced(sampler, num_replicas=1, rank=0, num_samples=size, total_size=size):
        return list(sampler)


def groups_in_use(loaders: Sequence[TurnLoader], fetcher: Any) -> list[list[Any]]:
    """Return the loaders' batches of the step that Lightning's ``fetcher`` has handed out.

    Of loaders without a length it draws one step ahead. At the end it has asked in vain: the loaders in turn, up to the
    one that had none left.
    """
    if fetcher.length is None and fetcher.done:
        last = max((number for number, loader in enumerate(loaders) if loader.ended), default=-1)
        return [loader.group(int(number <= last)) for number, loader in enumerate(loaders)]
    return [loader.group(len(getattr(fetcher, "batches", ()))) for loader in loaders]


class _Steps(Iterator[Any]):
    """Yields the first batch of each group, and notes the groups; an empty one whenever there is none left."""

    def __init__(self, steps: Iterator[list[Any]], groups: deque[list[Any]]) -> None:
        self._steps, self._groups = steps, groups

    def __next__(self) -> Any:
        group = next(self._steps, [])
        self._groups.append(group)
        if not group:
            raise StopIteration
        return group[0]


class TurnLoader(StandIn):
    """Replaces a training loader: yields the first part's batch of every step, and keeps those of the others.

    Args:
        loader: yields the batches of a worker's parts, in turns.
        parts: the parts of this worker. cut: False for data that the user shards, of which a worker has all turns.
        over: batches to skip in the first iteration, for data that cannot start in its middle.
    """

    def __init__(self, loader: Any, parts: DataParts, play: Play, *, cut: bool, over: int = 0) -> None:
        taken = parts.played if cut else [parts.worker] * parts.turns
        groups: deque[list[Any]] = deque(maxlen=2)
        super().__init__(loader, parts=parts, cut=cut, over=over, taken=taken, _play=play, _groups=groups)

    def __iter__(self) -> Iterator[Any]:
        over, vars(self)["over"] = self.over, 0
        if self.ended:
            self._groups.pop()  # a shorter loader begins again within a step, which then has its batches
        steps = _Steps(self._steps(iter(self.loader)), self._groups)
        for _ in itertools.islice(steps, over):
            pass
        return steps

    def group(self, ahead: int) -> list[Any]:
        """Return the batches of the step ``ahead`` steps ago; none once the loader has ended beside a longer one."""
        return self._groups[-1 - ahead] if ahead < len(self._groups) else []

    @property
    def ended(self) -> bool:
        """True where no batches were left when it was last asked for a step."""
        return bool(self._groups) and not self._groups[-1]

    def _steps(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        while True:
            group = []
            for part in self.taken:
                with self._play(part):
                    group += list(itertools.islice(batches, 1))
            if len(group) < len(self.taken):
                return
            yield group

    def __len__(self) -> int:
        length = sized_len(self.loader)
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return length // len(self.taken)
