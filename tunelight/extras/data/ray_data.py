"""Names of Ray Data that are private, or differ between versions.

Each function imports what it stands on, and says in which version of Ray that was read, and where versions differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def split_coordinator(shard: Any) -> Any:
    """Return the actor behind the iterators of ``Dataset.streaming_split``. Read in 2.60.0."""
    return shard._coord_actor


def shuffled_each_pass(dataset: Any, seed: int) -> Any:
    """Return a dataset whose blocks are in another order at each reading, fixed by seed and number of the pass.

    `start_at_pass` says which pass is the first. ``ray.data.RandomSeedConfig``, from 2.55 on. Before, no seed gives
    each pass another order, and the order is another one each time.
    """
    from ray import data

    config = getattr(data, "RandomSeedConfig", None)
    return dataset.randomize_block_order(seed=None if config is None else config(seed, reseed_after_execution=True))


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

    ``_iter_batches`` takes ``_collate_fn``, and so does ``iter_batches`` before 2.47; read in 2.43.0, 2.49.2, 2.54.1
    and 2.60.0. ``iter_torch_batches`` takes no ``device`` beside a function before 2.57.
    """
    from tunelight.compat.lightning import move_data_to_device

    def made(batch: dict[str, Any]) -> Any:
        return move_data_to_device(collate(batch), device)

    read = getattr(shard, "_iter_batches", shard.iter_batches)
    return iter(read(batch_format="numpy", _collate_fn=made, **arguments))
