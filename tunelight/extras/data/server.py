"""A sweep's datasets on the driver: opened, checked against the number of workers, and served to its trials.

A dataset holds references into Ray's object store, which Ray counts only in calls of actors, not in a trial's pickled
task. So trials fetch datasets from an actor, the dataset server, which ends with the sweep.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelight.errors import DataError, SettingsError, unknown
from tunelight.messages import DatasetHandle

if TYPE_CHECKING:
    from ray.data import Dataset

    from tunelight.settings import Settings

_CHECK_LIMIT_S = 30.0
_CHECKED_FILES = 1000
"""Parquet files whose columns and rows are checked before a sweep, which takes milliseconds each."""
HOW_TO_GET_DATA = (
    "Ray Data reads and moves data as Arrow tables, and pyarrow is not installed. Install it with: "
    "pip install 'tunelight[data]'"
)
SOURCES = ("parquet",)
"""Formats that can be given as {format: path}."""


def check_datasets(name: str, value: Any) -> dict[str, Any]:
    """Return datasets by name: Ray Data's as they are, a path as {"parquet": path}. Raises: SettingsError."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise SettingsError(
            f"{name} must be datasets by name, {{'train': ray.data.read_parquet(...), 'val': {{'parquet': path}}}}, "
            f"not {value!r}."
        )
    if value and find_spec("pyarrow") is None:
        raise SettingsError(f"{name}: {HOW_TO_GET_DATA}")
    return {key: _source(f"{name}[{key!r}]", source) for key, source in value.items()}


def _source(where: str, value: Any) -> Any:
    bases = type(value).__mro__  # which says that it is a Ray Data dataset, without importing Ray
    if any(base.__name__ == "Dataset" and base.__module__.startswith("ray.data") for base in bases):
        return value
    if isinstance(value, str | os.PathLike):
        value = {"parquet": value}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise SettingsError(
            f"{where} must be a dataset of Ray Data (ray.data.read_parquet(path)), or {{'parquet': path}}, not "
            f"{value!r}."
        )
    ((kind, path),) = value.items()
    if kind not in SOURCES:
        raise SettingsError(
            f"{unknown(f'{where}: there is no source', kind, SOURCES)} Give others as a dataset of Ray Data "
            "(ray.data.read_csv(path))."
        )
    paths = path if isinstance(path, list | tuple) else [path]
    if not paths or not all(isinstance(entry, str | os.PathLike) and os.fspath(entry) for entry in paths):
        raise SettingsError(f"{where}: {kind} must be the path of a file or folder, or a list of them, not {path!r}.")
    return {kind: [os.fspath(entry) for entry in paths] if isinstance(path, list | tuple) else os.fspath(path)}


class DatasetServer:
    """Hands out datasets by name. Runs on: an actor beside the driver."""

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self._datasets = dict(datasets)

    def get(self, name: str) -> Any:
        """Return a dataset."""
        return self._datasets[name]


def check_sources(datasets: Mapping[str, Any] | None, least: int) -> None:
    """Check that files exist, have equal columns, and feed ``least`` ranks. Raises: DataError. Runs on: driver."""
    for name, source in (datasets or {}).items():
        if isinstance(source, Mapping):
            check_rows(name, _rows_of(name, source), least if name == "train" else 1)


@contextlib.contextmanager
def served(settings: Settings, least: int) -> Iterator[DatasetHandle]:
    """Open a sweep's datasets, check that they can feed ``least`` ranks, and serve them to its trials.

    Yields the handle for the trials. Raises: DataError. Runs on: driver, once Ray is up.
    """
    import ray  # the check before Ray starts need not wait for it
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray_data()
    sources = settings.datasets or {}
    opened = {name: open_dataset(name, source) for name, source in sources.items()}
    if settings.cache:
        for name, dataset in opened.items():
            with task_errors(f"The dataset {name!r}"):
                opened[name] = materialized(dataset, settings.verbose)
    rows: dict[str, int | None] = {}
    notes = []
    for name, dataset in opened.items():
        if is_materialized(dataset):
            rows[name] = int(dataset.count())
        else:
            source = sources[name]
            rows[name] = _rows_of(name, source) if isinstance(source, Mapping) else None  # unknown until it is read
        check_rows(name, rows[name], least if name == "train" else 1)
        if settings.cache:
            size = (dataset.size_bytes() or 0) / 2**20
            notes.append(f"cached dataset {name!r}: {rows[name]} rows, {size:.1f} MiB in Ray's object store")
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    server: Any = ray.remote(DatasetServer).options(num_cpus=0, scheduling_strategy=here).remote(opened)
    try:
        yield DatasetHandle(rows, server, tuple(notes))
    finally:
        ray.kill(server)


@contextlib.contextmanager
def task_errors(what: str) -> Iterator[None]:
    """Turn the error of a Ray Data task into a DataError, without the frames that Ray adds."""
    from ray.exceptions import RayTaskError

    try:
        yield
    except RayTaskError as error:
        raise DataError(f"{what} cannot be prepared: {task_error(error)}") from error


def task_error(error: Exception) -> str:
    """Return the user's own frames and error from an error of a Ray Data task."""
    text = re.sub(r"\x1b\[\d*m", "", str(error)).partition("\n\nThe above exception was the direct cause")[0]
    return re.split(r"ray\.exceptions\.RayTaskError\(\w+\): ", text)[-1]


def open_dataset(name: str, source: Any) -> Dataset:
    """Return ``source``, or the dataset that {"parquet": path} names, if all nodes can read it. Raises: DataError."""
    if not isinstance(source, Mapping):
        _check_reach(name, source.input_files())
        return source  # type: ignore[no-any-return]  # checked by the settings
    paths = _paths(source)
    _check_reach(name, paths)
    data = ray_data()
    try:
        return data.read_parquet(paths)  # type: ignore[no-any-return]  # the module is imported late
    except Exception as error:  # errors of the store, of Arrow and of Ray
        raise DataError(
            f"The dataset {name!r} cannot be read from {', '.join(paths)}: {str(error).rstrip('.')}. Correct the path, "
            "or give a dataset that you have read yourself: ray.data.read_parquet(path, filesystem=...)."
        ) from error


def ray_data() -> Any:
    """Return the module ``ray.data``, its loggers kept to errors. Raises: DataError where pyarrow is missing."""
    try:
        from ray import data  # seconds, and an extra
    except ImportError as error:
        raise DataError(f"{HOW_TO_GET_DATA} ({error})") from error
    for handler in logging.getLogger("ray.data").handlers:
        # Ray's log files, which are no streams, still get everything, and so do handlers that others have added.
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("ray."):
            handler.setLevel(max(handler.level, logging.ERROR))
    return data


def check_rows(name: str, rows: int | None, least: int) -> None:
    """Raise DataError if a dataset is known to have fewer rows than ``least``."""
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
    """Return how many rows Parquet files hold; None if too many or not all are on this disk. Raises: DataError."""
    files: list[str] = []
    for path in _paths(source):
        if "://" in path:
            return None
        local = Path(path)
        matches = sorted(map(str, local.rglob("*.parquet"))) if local.is_dir() else [path]
        if not local.exists() or not matches:
            what = "that folder has no *.parquet file" if local.exists() else "there is no such file or folder"
            raise DataError(f"The dataset {name!r} is to be read from {path}, and {what}. Correct the path.")
        files += matches
    if len(files) > _CHECKED_FILES:
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
        try:
            pa.unify_schemas([first, schema], promote_options="permissive")  # as Ray Data does: int32 with int64
        except pa.ArrowException as error:
            raise DataError(
                f"The files of the dataset {name!r} have columns of unequal types: {files[0]} and {file}: {error} "
                "Write them alike."
            ) from error


def _check_reach(name: str, files: list[str]) -> None:
    """Raise DataError if a local file is not on every node: Ray Data may read it on any of them."""
    import ray
    from ray.exceptions import RayError

    from tunelight.cluster.connect import ask_others

    files = [file for file in files if os.path.isabs(file) and os.path.exists(file)]  # noqa: PTH110, PTH117 - or URLs
    calls = ask_others(os.path.exists, files[0]) if files else {}
    if not calls:
        return
    done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=_CHECK_LIMIT_S)
    for call in done:  # a node that does not answer in time does not stop a sweep
        with contextlib.suppress(RayError):
            if not ray.get(call):
                node = calls[call]
                raise DataError(
                    f"The dataset {name!r} is in {files[0]}, which only the driver's node can read: node "
                    f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}) has no such file. Put it in a "
                    "folder that all nodes share, or in a store that they reach (s3://...)."
                )


def is_materialized(dataset: Any) -> bool:
    """Tell whether a dataset's blocks are all in the object store. Read in 2.60.0."""
    from ray.data.dataset import MaterializedDataset

    return isinstance(dataset, MaterializedDataset)


def materialized(dataset: Any, verbose: int = 0) -> Any:
    """Return a dataset with its blocks in Ray's object store, in its own order; it is read and preprocessed once."""
    if is_materialized(dataset):
        return dataset
    dataset.context.enable_progress_bars = verbose > 1
    dataset.context.execution_options.preserve_order = True
    return dataset.materialize()
