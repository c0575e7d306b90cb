"""A sweep's datasets on the driver's side: opened and checked before Ray's trials start, and served to these.

A dataset holds references into Ray's object store, which are only counted while they travel inside calls of actors. So
trials get no dataset with their task: they ask an actor for it, the dataset server, which ends with the sweep.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.compat.ray import is_materialized
from tunelight.errors import HOW_TO_GET_DATA, DataError
from tunelight.messages import DatasetHandle

if TYPE_CHECKING:
    from ray.data import Dataset

    from tunelight.settings import Settings

_LOOK_LIMIT_S = 30.0
_MOST_FILES = 1000
"""Of how many Parquet files the columns are looked at, and rows counted, before a sweep: it takes milliseconds each."""


class DatasetServer:
    """Hands out datasets by name. Runs on: an actor beside the driver."""

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self._datasets = dict(datasets)

    def get(self, name: str) -> Any:
        """Return a dataset."""
        return self._datasets[name]


def check_sources(datasets: Mapping[str, Any] | None, least: int) -> None:
    """Look whether files of datasets that are given by path are there, alike, and enough for ``least`` ranks.

    Raises: DataError. Runs on: driver, before Ray starts.
    """
    for name, source in (datasets or {}).items():
        if isinstance(source, Mapping):
            check_rows(name, _rows_of(name, source), least if name == "train" else 1)


@contextlib.contextmanager
def served(settings: Settings, least: int) -> Iterator[DatasetHandle | None]:
    """Open a sweep's datasets, check that they can feed ``least`` ranks, and lend them to its trials.

    Yields what trials are told of them (None where there are none). Raises: DataError. Runs on: driver, once Ray is up.
    """
    if not settings.datasets:
        yield None
        return
    import ray  # a sweep without datasets need not wait for it
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray_data()
    opened = {name: open_dataset(name, source) for name, source in settings.datasets.items()}
    if settings.cache:
        for name, dataset in opened.items():
            with task_errors(f"The dataset {name!r}"):
                opened[name] = materialized(dataset, settings.verbose)
    rows = {name: _rows(name, dataset, settings.datasets[name]) for name, dataset in opened.items()}
    for name, count in rows.items():
        check_rows(name, count, least if name == "train" else 1)
    notes = [
        f"cached dataset {name!r}: {rows[name]} rows, {(one.size_bytes() or 0) / 2**20:.1f} MiB in Ray's object store"
        for name, one in (opened.items() if settings.cache else ())
    ]
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    server: Any = ray.remote(DatasetServer).options(num_cpus=0, scheduling_strategy=here).remote(opened)
    try:
        yield DatasetHandle(rows, server, tuple(notes))
    finally:
        ray.kill(server)


@contextlib.contextmanager
def task_errors(what: str) -> Iterator[None]:
    """Turn what a task of Ray Data failed of, which Ray wraps in frames and words of its own, into a DataError."""
    from ray.exceptions import RayTaskError

    try:
        yield
    except RayTaskError as error:
        raise DataError(f"{what} cannot be prepared: {task_error(error)}") from error


def task_error(error: Exception) -> str:
    """Return the user's own frames and error of what a task of Ray Data failed of."""
    text = re.sub(r"\x1b\[\d*m", "", str(error)).partition("\n\nThe above exception was the direct cause")[0]
    return re.split(r"ray\.exceptions\.RayTaskError\(\w+\): ", text)[-1]


def open_dataset(name: str, source: Any) -> Dataset:
    """Return a dataset as it is, or that of {"parquet": path}, if all nodes can read it. Raises: DataError."""
    if not isinstance(source, Mapping):
        _check_reach(name, source.input_files())
        return source  # type: ignore[no-any-return]  # checked by the settings
    paths = _paths(source)
    _check_reach(name, paths)
    data = ray_data()
    try:
        return data.read_parquet(paths)  # type: ignore[no-any-return]  # the module is imported late
    except Exception as error:  # a store's own kinds, Arrow's and Ray's
        raise DataError(
            f"The dataset {name!r} cannot be read from {', '.join(paths)}: {str(error).rstrip('.')}. Correct the path, "
            "or give a dataset that you have read yourself: ray.data.read_parquet(path, filesystem=...)."
        ) from error


def ray_data() -> Any:
    """Return the module ``ray.data``, which from now on prints nothing but errors in this process.

    Raises: DataError where pyarrow is missing.
    """
    try:
        from ray import data  # seconds, and an extra
    except ImportError as error:
        raise DataError(f"{HOW_TO_GET_DATA} ({error})") from error
    for handler in logging.getLogger("ray.data").handlers:
        # Ray's log files, which are no streams, still get all of it, and so do handlers that others have added.
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("ray."):
            handler.setLevel(max(handler.level, logging.ERROR))
    return data


def check_rows(name: str, rows: int | None, least: int) -> None:
    """Raise DataError where a dataset is known to have fewer rows than it has to feed."""
    if rows is not None and rows < least:
        who = "there are ranks that each need one" if least > 1 else "the 1 that it takes"
        raise DataError(
            f"The dataset {name!r} has {rows} row{'' if rows == 1 else 's'}, fewer than {who} ({least}). Give more "
            "data, or fewer workers."
        )


def _paths(source: Mapping[str, Any]) -> list[str]:
    paths = source["parquet"]
    given = [paths] if isinstance(paths, str) else list(paths)
    return [path if "://" in path else os.path.abspath(os.path.expanduser(path)) for path in given]  # noqa: PTH100, PTH111 - beside URLs


def _rows_of(name: str, source: Mapping[str, Any]) -> int | None:
    """Return how many rows Parquet files hold (None: some are not on this disk, or there are too many to look at).

    Raises: DataError where there are none, or columns differ.
    """
    files: list[str] = []
    for path in _paths(source):
        if "://" in path:
            return None
        place = Path(path)
        found = sorted(map(str, place.rglob("*.parquet"))) if place.is_dir() else [path]
        if not place.exists() or not found:
            what = "no *.parquet file lies in that folder" if place.exists() else "there is no such file or folder"
            raise DataError(f"The dataset {name!r} is to be read from {path}, and {what}. Correct the path.")
        files += found
    if len(files) > _MOST_FILES:
        return None
    _check_columns(name, files)
    import pyarrow.parquet as pq  # an extra

    return sum(int(pq.read_metadata(file).num_rows) for file in files)


def _check_columns(name: str, files: list[str]) -> None:
    import pyarrow as pa  # an extra
    import pyarrow.parquet as pq

    first: Any = None
    for file in files:
        try:
            schema = pq.read_schema(file)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"The dataset {name!r} cannot be read: {file} is no Parquet file ({error}).") from error
        first = schema if first is None else first
        if differ := ", ".join(sorted(set(schema.names) ^ set(first.names))):
            raise DataError(
                f"The files of the dataset {name!r} have unequal columns: {differ} is only in one of {files[0]} and "
                f"{file}, and rows of the other would lack it. Write them alike, or read them as two datasets."
            )
        for field in schema:
            if (other := first.field(field.name).type) != field.type and not _alike(other, field.type):
                raise DataError(
                    f"The files of the dataset {name!r} have columns of unequal types: {field.name} is {other} in "
                    f"{files[0]}, and {field.type} in {file}. Write them alike."
                )


def _alike(one: Any, other: Any) -> bool:
    """Tell whether Ray Data makes one column of two types, as of int32 and int64."""
    import pyarrow as pa

    try:
        pa.unify_schemas([pa.schema([("x", each)]) for each in (one, other)], promote_options="permissive")
    except pa.ArrowException:
        return False
    return True


def _check_reach(name: str, files: list[str]) -> None:
    """Raise DataError where a local file is not on every node: Ray Data reads wherever there is room."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    files = [file for file in files if os.path.isabs(file) and os.path.exists(file)]  # noqa: PTH110, PTH117 - or URLs
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not files or not others:
        return
    look: Any = ray.remote(_exists).options(num_cpus=0, max_retries=0)
    calls = {
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            files[0]
        ): node
        for node in others
    }
    done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_LOOK_LIMIT_S)
    for call in done:  # a node that does not answer in time is no reason to refuse a sweep
        with contextlib.suppress(RayError):
            if not ray.get(call):
                node = calls[call]
                raise DataError(
                    f"The dataset {name!r} lies in {files[0]}, which only the driver's node can read: node "
                    f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}) has no such file. Put it in a "
                    "folder that all nodes share, or in a store that they reach (s3://...)."
                )


def _exists(path: str) -> bool:
    """Tell whether a file is there. Runs on: any node."""
    return Path(path).exists()


def _rows(name: str, dataset: Dataset, source: Any) -> int | None:
    """Return how many rows a dataset has, where that can be known without reading it."""
    if is_materialized(dataset):
        return int(dataset.count())
    return _rows_of(name, source) if isinstance(source, Mapping) else None


def materialized(dataset: Any, verbose: int = 0) -> Any:
    """Return a dataset as blocks in Ray's object store, in its own order, read and preprocessed once."""
    if is_materialized(dataset):
        return dataset
    dataset.context.enable_progress_bars = verbose > 1
    dataset.context.execution_options.preserve_order = True
    return dataset.materialize()
