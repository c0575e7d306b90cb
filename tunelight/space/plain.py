"""Configurations as plain data, for JSON and YAML."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from tunelight.settings import import_path


def to_plain_config(value: Any) -> Any:
    """Return a value in JSON's and YAML's types; functions and classes as import paths, other objects as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain_config(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_config(part) for part in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return import_path(value) if callable(value) else repr(value)
