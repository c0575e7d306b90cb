"""Names of Ray Data that are private, or differ between versions.

Each function imports what it stands on, and says in which version of Ray that was read, and where versions differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def split_coordinator(shard: Any) -> Any:
    """Return the actor behind the iterators of ``Dataset.streaming_split``. Read in 2.60.0."""
    return shard._coord_actor


def shuffled_each_pass(dataset: Any, seed: int, epoch: int) -> Any:
    """Return a dataset whose blocks are in another order at each reading, fixed by seed and number of the pass.

    The first pass is ``epoch``; call `start_at_pass` too. ``ray.data.RandomSeedConfig``, from 2.55 on. Before, Ray Data
    calls ``random.seed`` with what it was given in each pass, read in 2.43.0 and 2.54.1.
    """
    from ray import data

    if hasattr(data, "RandomSeedConfig"):
        return dataset.randomize_block_order(seed=data.RandomSeedConfig(seed, reseed_after_execution=True))
    return dataset.randomize_block_order(seed=_SeedOfPasses(seed, epoch))


class _SeedOfPasses(str):
    """A seed that is another one each time that ``random.seed`` is called with it.

    It refuses what is neither number nor text, and asks text for its bytes. Read in Python 3.11.7 and 3.13.0.
    """

    epoch: int

    def __new__(cls, seed: int, epoch: int) -> _SeedOfPasses:
        made = super().__new__(cls, seed)
        made.epoch = epoch
        return made

    def __reduce__(self) -> Any:
        return _SeedOfPasses, (int(self), self.epoch)

    def encode(self, *_: Any) -> bytes:
        """Return the seed of the next pass."""
        self.epoch += 1
        return f"{self!s} {self.epoch}".encode()


def start_at_pass(context: Any, index: int) -> None:
    """Set how often Ray Data takes a dataset for read already, which it mixes into its seeds.

    ``DataContext._execution_idx``, read in 2.60.0; from 2.55 on for the order of blocks. Without effect before.
    """
    context._execution_idx = index


def is_materialized(dataset: Any) -> bool:
    """Tell whether a dataset's blocks are all in the object store. Read in 2.60.0."""
    from ray.data.dataset import MaterializedDataset

    return isinstance(dataset, MaterializedDataset)


def torch_batches(shard: Any, collate: Callable[[dict[str, Any]], Any], device: Any, **arguments: Any) -> Iterator[Any]:
    """Iterate over a shard's batches, on ``device``: what ``collate``, in a thread, makes of NumPy arrays by column.

    ``_iter_batches`` takes ``_collate_fn`` and ``_finalize_fn``, and so does ``iter_batches`` before 2.47; read in
    2.43.0, 2.49.2, 2.54.1 and 2.60.0. ``iter_torch_batches`` takes no ``device`` beside a function before 2.57.
    """
    from tunelight.compat.lightning import move_data_to_device

    read = getattr(shard, "_iter_batches", shard.iter_batches)
    moved: dict[str, Any] = {"_finalize_fn": lambda batch: move_data_to_device(batch, device)}
    return iter(read(batch_format="numpy", _collate_fn=collate, **moved, **arguments))
