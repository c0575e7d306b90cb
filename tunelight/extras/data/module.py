"""RayDataModule: a LightningDataModule over Ray Data, for trials, for a driver's gang, and for one process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tunelight.compat.lightning import gang_strategy, move_data_to_device, pl
from tunelight.errors import DataError, SettingsError, known_arguments, refuse_unknown, whole
from tunelight.extras.data.server import task_errors
from tunelight.extras.data.shards import Preprocess, close_shard, in_sweep, open_full, open_shard, seed_of_order
from tunelight.lightning.exact.eval_shards import Dealable, Limit, StreamShare, batches_kept
from tunelight.session.session import current

if TYPE_CHECKING:
    from ray.data import Dataset

Collate = Callable[[dict[str, Any]], Any]
_PARTS = ("train", "val", "test", "predict")
_BUFFER_BATCHES = 16


@dataclass(frozen=True)
class Reading:
    """How batches are read, and how rows become tensors."""

    batch_size: int
    columns: tuple[str, ...] | None
    collate_fn: Collate | None
    prefetch_batches: int

    def batches(self, shard: Any, device: torch.device, **more: Any) -> Iterator[Any]:
        """Iterate over the batches of Ray Data's iterator, as tensors on ``device``; ``more``: shuffling, drop_last.

        ``_iter_batches`` takes ``_collate_fn``, and so does ``iter_batches`` before 2.47; read in 2.43.0, 2.49.2,
        2.54.1 and 2.60.0. ``iter_torch_batches`` takes no ``device`` beside a function before 2.57.
        """

        def made(batch: dict[str, Any]) -> Any:  # in a thread
            return move_data_to_device(self.collate(batch), device)

        more |= {"batch_size": self.batch_size, "prefetch_batches": self.prefetch_batches}
        read = getattr(shard, "_iter_batches", shard.iter_batches)
        return iter(read(batch_format="numpy", _collate_fn=made, **more))

    def collate(self, batch: dict[str, Any]) -> Any:
        """Return tensors by column of NumPy arrays, or what the user's function makes of these. Raises: DataError."""
        refuse_unknown("The dataset has no column", self.columns or (), batch, kind=DataError)
        chosen = {name: batch[name] for name in self.columns or batch}
        if self.collate_fn is not None:
            return self.collate_fn(chosen)
        try:
            return {name: _tensor(column) for name, column in chosen.items()}
        except (TypeError, RuntimeError, ValueError) as error:  # text, and lists of different lengths
            kinds = [f"{name}: {column.dtype}" for name, column in chosen.items()]
            raise DataError(
                f"No tensors can be made of the dataset's columns ({', '.join(kinds)}): {error} Name those that the "
                "model needs, columns=('image', 'label'), or make a batch of them yourself: collate_fn=."
            ) from error

    def finished(self, batch: Any) -> Any:
        """Return a batch in the form that the model gets."""
        if self.columns is None or self.collate_fn is not None:
            return batch
        return tuple(batch[name] for name in self.columns)


def _tensor(column: Any) -> torch.Tensor:
    """Return a tensor of a NumPy array, or of an array of arrays of the same shape."""
    whole = np.stack(column) if column.dtype == object else column
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


class RayDataModule(pl.LightningDataModule):
    """Feed Lightning from Ray Data: training streams an equal shard to each rank, evaluation reads every row once.

    Works in a trial's train function, as ``data=`` of a sweep with ``model=``, with ``Trainer(strategy=tl.RayStrategy(
    num_workers=2))`` on a driver, and in one process without a gang. Lightning adds no sampler.

    Args:
        train, val, test, predict: a dataset of Ray Data, or the name of one of the sweep's ``datasets=``; by default
            the sweep's datasets of these names.
        batch_size: rows of one rank's batch.
        columns: a batch is the tuple of these columns' tensors, in this order; None: a dict of tensors by column.
        collate_fn: makes a batch of {column: NumPy array with rows as its first dimension}. Runs in a thread.
        preprocess: this trial's own steps, ``lambda ds: ds.map_batches(...)``, run in Ray Data's tasks outside of the
            trial's workers. A function applies to all parts, {"train": function} to those named. Evaluation data is
            preprocessed once a trial, and kept in Ray's object store.
        local_shuffle_buffer_size: rows of the buffer in which a rank shuffles its training rows (None: 16 batches; 0:
            no shuffling within a block). Seed, epoch and rank determine the order.
        prefetch_batches: batches that a thread prepares in advance.
        drop_last: leave out an epoch's last batch if it is smaller (training only).
        seed: seed of the order (None: the trial's).

    Raises: SettingsError; DataError once the data is opened.
    """

    @known_arguments
    def __init__(
        self,
        train: Dataset | str | None = "train",
        val: Dataset | str | None = "val",
        test: Dataset | str | None = "test",
        predict: Dataset | str | None = "predict",
        *,
        batch_size: int = 64,
        columns: Sequence[str] | None = None,
        collate_fn: Collate | None = None,
        preprocess: Preprocess | Mapping[str, Preprocess] | None = None,
        local_shuffle_buffer_size: int | None = None,
        prefetch_batches: int = 1,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        buffer = _BUFFER_BATCHES * batch_size if local_shuffle_buffer_size is None else local_shuffle_buffer_size
        whole("batch_size", batch_size)
        whole("local_shuffle_buffer_size", buffer, least=0)
        whole("prefetch_batches", prefetch_batches, least=0)
        if 0 < buffer < batch_size:
            raise SettingsError(
                f"local_shuffle_buffer_size={buffer} is smaller than batch_size={batch_size}: a batch is drawn from "
                "the buffer. Give more, or 0 for no shuffling."
            )
        given = preprocess if isinstance(preprocess, Mapping) else dict.fromkeys(_PARTS, preprocess)
        refuse_unknown("preprocess has no", given, _PARTS)
        self.sources: dict[str, Any] = dict(zip(_PARTS, (train, val, test, predict), strict=True))
        self.reading = Reading(batch_size, tuple(columns) if columns else None, collate_fn, prefetch_batches)
        self._preprocess, self._buffer, self._drop_last, self._seed = dict(given), buffer, drop_last, seed
        self._shard: ShardLoader | None = None

    def train_dataloader(self) -> Any:
        """Return a loader of this rank's shard, which is opened at its first use."""
        self.close()
        source = self._source("train")
        if source is None:
            return []
        self._check_shards()
        self._shard = ShardLoader(
            lambda epoch: open_shard(source, preprocess=self._preprocess.get("train"), seed=self._seed, epoch=epoch),
            self.reading,
            device=self._device(),
            buffer=self._buffer,
            drop_last=self._drop_last,
            seed=self._seed,
        )
        return self._shard

    def val_dataloader(self) -> Any:
        """Return a loader of all validation data."""
        return self._full("val")

    def test_dataloader(self) -> Any:
        """Return a loader of all test data."""
        return self._full("test")

    def predict_dataloader(self) -> Any:
        """Return a loader of all data to predict."""
        return self._full("predict")

    def teardown(self, stage: str) -> None:
        """Close the training shard."""
        if stage == "fit":
            self.close()

    def close(self) -> None:
        """End the actor that streams the training data."""
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the shard, which belongs to this process."""
        return {**self.__dict__, "_shard": None}

    def _source(self, part: str) -> Any:
        """Return the source of a part; None if it is a default name that the sweep has no dataset for."""
        source = self.sources[part]
        return None if source == part and not in_sweep(part) and part != "train" else source

    def _full(self, part: str) -> Any:
        source = self._source(part)
        if source is None:
            return []
        loader = FullLoader(open_full(source, preprocess=self._preprocess.get(part)), self.reading)
        strategy = gang_strategy(self.trainer)
        if self.trainer is None or strategy is None or strategy.exact:
            return loader  # one process's batches, which an exact strategy deals
        if not self.trainer._accelerator_connector.use_distributed_sampler:
            return loader
        return RowsLoader(loader, *strategy._shards(), padded=part != "predict")

    def _device(self) -> torch.device:
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device

    def _check_shards(self) -> None:
        strategy, session = gang_strategy(self.trainer), current()
        if strategy is not None and session is not None and strategy._shards()[0] != session.place.world_size:
            raise DataError(
                "Ranks that share one copy of the model (tensor_parallel_size) need the same rows, and each of the "
                f"{session.place.world_size} ranks would get rows of its own from Ray Data. Use a map-style dataset "
                "there."
            )


class ShardLoader:
    """A loader, for Lightning, of one rank's shard: one pass is one epoch.

    Args:
        opened: opens the shard for an epoch and the following ones; returns it and its number of rows, if known.
        reading: how batches are read. device: the batches' device. buffer: rows to shuffle in, or 0.
    """

    def __init__(
        self,
        opened: Callable[[int], tuple[Any, int | None]],
        reading: Reading,
        *,
        device: torch.device,
        buffer: int,
        drop_last: bool,
        seed: int | None,
    ) -> None:
        session = current()
        self._opened, self._reading, self._device = opened, reading, device
        self._buffer, self._drop_last, self._seed = buffer, drop_last, seed_of_order(seed)
        self._rank = 0 if session is None else session.context.rank
        self._shard: Any = None
        self._rows: int | None = None
        self._next = self._epoch = 0
        self._running: Generator[Any, None, None] | None = None

    @property
    def sampler(self) -> ShardLoader:
        """This loader: Lightning calls ``set_epoch`` on a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of an epoch. Raises: TypeError if it is unknown without reading the data."""
        self._open()
        if self._rows is None:
            raise TypeError("The dataset has no length: it is streamed, and its rows were not counted.")
        batches, left = divmod(self._rows, self._reading.batch_size)
        return batches + bool(left and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        self._end_pass()
        self._running = self._pass()
        return self._running

    def close(self) -> None:
        """End the shard on all ranks; a later pass opens a new one."""
        self._end_pass()
        self._drop()

    def _drop(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None and self._rank == 0:
            close_shard(shard)

    def _open(self) -> None:
        if self._shard is None:
            self._shard, self._rows = self._opened(self._epoch)
            self._next = self._epoch

    def _pass(self) -> Generator[Any, None, None]:
        if self._next != self._epoch:  # the shard counts epochs itself, and would use another order
            self._drop()
        self._open()
        self._next += 1
        order = hash((self._seed, self._epoch, self._rank)) % 2**32  # that of numbers is the same in every process
        shuffled = {"local_shuffle_buffer_size": self._buffer, "local_shuffle_seed": order} if self._buffer else {}
        batches = self._reading.batches(self._shard, self._device, drop_last=self._drop_last, **shuffled)
        empty = True
        with task_errors(f"The shard of rank {self._rank}"):
            for batch in batches:
                empty = False
                yield self._reading.finished(batch)
        if empty:
            raise DataError(
                f"The shard of rank {self._rank} is empty in epoch {self._epoch}: the dataset, once preprocessed, has "
                f"fewer rows than {'a batch' if self._drop_last else 'there are ranks'}. Give more data, or fewer "
                "workers; look whether a filter leaves any rows."
            )

    def _end_pass(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()


class FullLoader(Dealable):
    """A loader, for Lightning, of all of a dataset; a strategy that evaluates exactly deals its batches."""

    def __init__(self, dataset: Any, reading: Reading) -> None:
        self._dataset, self.reading = dataset, reading
        self.rows = int(dataset.count())

    def __len__(self) -> int:
        return math.ceil(self.rows / self.reading.batch_size)

    def __iter__(self) -> Iterator[Any]:
        return map(self.made, self.raw())

    def made(self, rows: Any) -> Any:
        """Return the batch made of raw rows."""
        return self.reading.finished(self.reading.collate(rows))

    def raw(self, times: int = 1) -> Iterator[Any]:
        """Yield raw batches, ``times`` as large; only the rank that a batch is for makes tensors of it."""
        return iter(
            self._dataset.iter_batches(
                batch_size=self.reading.batch_size * times,
                batch_format="numpy",
                prefetch_batches=self.reading.prefetch_batches,
            )
        )

    def dealt(self, parts: int, part: int, limit: Limit) -> DealtLoader:
        """Return one rank's share of the batches."""
        return DealtLoader(self, parts, part, limit)


class RowsLoader:
    """A loader, for Lightning, of one rank's rows: every ``parts``-th, as Lightning's DistributedSampler has them.

    With ``padded``, rows of the last batch are repeated, so that all ranks have as many; else the last ranks may have
    one less.
    """

    def __init__(self, whole: FullLoader, parts: int, part: int, *, padded: bool) -> None:
        self._whole, self._parts, self._part, self._padded = whole, parts, part, padded

    def __len__(self) -> int:
        rows = self._whole.rows + (self._parts - 1 if self._padded else self._parts - 1 - self._part)
        return math.ceil(rows // self._parts / self._whole.reading.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._whole.raw(self._parts):
            size = len(next(iter(batch.values())))
            end = math.ceil(size / self._parts) * self._parts if self._padded else size
            if mine := [row % size for row in range(self._part, end, self._parts)]:
                yield self._whole.made({name: column[mine] for name, column in batch.items()})


class DealtLoader(StreamShare):
    """One rank's share of all batches; only its own are made into tensors."""

    def __iter__(self) -> Iterator[Any]:
        kept = batches_kept(len(self.loader), self._limit)
        return map(self.loader.made, self.deal(itertools.islice(self.loader.raw(), kept)))
