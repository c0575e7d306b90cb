"""Each rank's part of a dataset: an equal streamed shard to train on, or all of its blocks to evaluate on.

Shards come from Ray Data's ``streaming_split``: an actor, the coordinator, runs the dataset once an epoch, in tasks
outside of the trial's reservation, and hands blocks to the ranks. Rank 0 starts it for all, and ends it with the trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tunelight.errors import DataError, unknown
from tunelight.extras.data.server import check_rows, is_materialized, materialized, ray_data, task_errors
from tunelight.session.session import Session, current

if TYPE_CHECKING:
    from ray.data import DataIterator, Dataset

Preprocess = Callable[[Any], Any]
"""Dataset -> Dataset, lazily."""

_GET_LIMIT_S = 300.0
"""Limit for one call of the dataset server, which hands out references and a plan, but whose process has to start."""
_ROOM_LIMIT_S = 30.0


def get_dataset_shard(
    name: str | Dataset = "train", *, preprocess: Preprocess | None = None, seed: int | None = None, epoch: int = 0
) -> DataIterator:
    """Return this rank's shard of a dataset, to be read once an epoch; call it on every rank of a trial.

    A shard is Ray Data's DataIterator: read it with ``iter_torch_batches(batch_size=64)`` and the like. Shards are
    disjoint and of equal size (the remainder of the division, less than a row for each rank, is dropped), and every
    rank has to read its own. The blocks of a cached dataset are in a different order each epoch; to shuffle rows within
    them, pass ``local_shuffle_buffer_size=``. Seed and epoch determine the order, with Ray 2.55 or newer.

    Args:
        name: one of the sweep's ``datasets=``, or a dataset of Ray Data.
        preprocess: this trial's own steps, ``lambda ds: ds.map_batches(...)``; they run in Ray Data's tasks.
        seed: seed of the order (None: the trial's).
        epoch: the epoch of the first pass, for a resumed trial (0).

    Runs on: worker, or a process without a gang, which is then the only rank. Raises: DataError.
    """
    return open_shard(name, preprocess=preprocess, seed=seed, epoch=epoch)[0]


def open_shard(
    source: str | Dataset, *, preprocess: Preprocess | None = None, seed: int | None = None, epoch: int = 0
) -> tuple[DataIterator, int | None]:
    """Return this rank's shard, and its rows an epoch (None: unknown); see `get_dataset_shard`."""
    ray_data()  # on every rank: unpickling what rank 0 makes imports Ray Data, whose output would go to the trial's log
    session = current()
    ranks = 1 if session is None else session.context.world_size

    def make() -> tuple[list[Any], int | None]:
        dataset = _resolved(source, session)
        rows = int(dataset.count()) if is_materialized(dataset) and preprocess is None else None
        check_rows(_name_of(source), rows, ranks)
        if is_materialized(dataset):  # others would be read to their end before the first block is handed out
            dataset = shuffled_each_pass(dataset, seed_of_order(seed))
        dataset = _preprocessed(dataset, preprocess)
        dataset.context.execution_options.preserve_order = True
        start_at_pass(dataset.context, epoch)
        iterators = list(dataset.streaming_split(ranks, equal=True))  # they share one run of the dataset an epoch
        if session is not None and session.shared is not None:
            session.shared.at_end(lambda: close_shard(iterators[0]))
        return iterators, None if rows is None else rows // ranks

    if session is None or session.shared is None:
        iterators, rows = make()
        return iterators[0], rows
    iterators, rows = session.shared.once(f"dataset {_name_of(source)}", make)
    return iterators[session.context.rank], rows


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


def close_shard(shard: Any) -> None:
    """End the coordinator of all ranks' shards, which can then not be read any further. Runs on: rank 0."""
    import ray  # half a second; only trials with datasets need it

    ray.kill(shard._coord_actor)  # of `Dataset.streaming_split`; read in 2.60.0


def open_full(source: str | Dataset, *, preprocess: Preprocess | None = None) -> Any:
    """Return a full dataset, its blocks in Ray's object store; rank 0 prepares it once for all ranks."""
    ray_data()  # as above
    session = current()

    def make() -> Any:
        with task_errors(f"The dataset {_name_of(source)!r}"):
            dataset = materialized(_preprocessed(_resolved(source, session), preprocess))
        check_rows(_name_of(source), int(dataset.count()), 1)
        return dataset

    if session is None or session.shared is None:
        return make()
    return session.shared.once(f"all of dataset {_name_of(source)}", make)


def in_sweep(name: str) -> bool:
    """Tell whether the sweep has a dataset of this name."""
    session = current()
    return session is not None and session.shared is not None and name in session.shared.datasets.rows


def _name_of(source: Any) -> str:
    return source if isinstance(source, str) else "given to the data module"


def seed_of_order(seed: int | None) -> int:
    """Return a given seed, else the trial's, else 0."""
    session = current()
    return seed if seed is not None else (None if session is None else session.context.seed) or 0


def _resolved(source: Any, session: Session | None) -> Any:
    """Return the sweep's dataset of a name, or a dataset itself, once there is a free CPU to read it on."""
    if isinstance(source, str):
        return _from_sweep(source, session)
    if not is_materialized(source):
        _wait_for_room()
    return source


def _preprocessed(dataset: Any, preprocess: Preprocess | None) -> Any:
    """Return a dataset with this trial's preprocessing applied, lazily."""
    made = dataset if preprocess is None else preprocess(dataset)
    if not hasattr(made, "streaming_split"):
        raise DataError(
            f"preprocess has to return a dataset of Ray Data, and returned {type(made).__name__}. Write it as "
            "lambda ds: ds.map_batches(function)."
        )
    made.context.enable_progress_bars = False
    return made


def _from_sweep(name: str, session: Session | None) -> Any:
    import ray

    datasets = None if session is None or session.shared is None else session.shared.datasets
    if datasets is None or name not in datasets.rows:
        known = [] if datasets is None else list(datasets.rows)
        raise DataError(
            f"{unknown('There is no dataset', name, known)} Give it to the sweep: "
            f"tl.run(..., datasets={{{name!r}: ds}}), or pass the dataset itself."
        )
    return ray.get(datasets.server.get.remote(name), timeout=_GET_LIMIT_S)


def _wait_for_room() -> None:
    """Wait until a CPU is outside of all reservations, for Ray Data's tasks. Raises: DataError after half a minute."""
    import ray
    from ray.util.placement_group import placement_group_table

    deadline = time.monotonic() + _ROOM_LIMIT_S
    while True:
        groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
        reserved = sum(bundle.get("CPU", 0) for group in groups for bundle in group["bundles"].values())
        total = ray.cluster_resources().get("CPU", 0)
        if total - reserved >= 1:
            return
        if time.monotonic() > deadline:
            raise DataError(
                f"No CPU is left for Ray Data: {reserved:g} of the cluster's {total:g} are reserved, so the dataset "
                "can never be read. Give it to the sweep, tl.run(..., datasets={'train': ds}), which keeps data_cpus=1 "
                "free; or use fewer workers, or max_concurrent=."
            )
        time.sleep(0.5)
