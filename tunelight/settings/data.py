"""The ``datasets`` setting: datasets of Ray Data, or where to read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from tunelight.errors import HOW_TO_GET_DATA, SettingsError, unknown

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
    return {key: _source(f"{name}[{key!r}]", one) for key, one in value.items()}


def is_dataset(value: Any) -> bool:
    """Tell whether an object is a Ray Data dataset, without importing Ray."""
    return any(base.__name__ == "Dataset" and base.__module__.startswith("ray.data") for base in type(value).__mro__)


def _source(where: str, value: Any) -> Any:
    if is_dataset(value):
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
    if not paths or not all(isinstance(one, str | os.PathLike) and os.fspath(one) for one in paths):
        raise SettingsError(f"{where}: {kind} must be the path of a file or folder, or a list of them, not {path!r}.")
    return {kind: [os.fspath(one) for one in paths] if isinstance(path, list | tuple) else os.fspath(path)}
