"""Configurations by dotted key: {"model": {"lr": 0.1}} has the key "model.lr"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested configuration by dotted key; an empty mapping is a value."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            values.update(flatten(value, f"{prefix}{key}."))
        else:
            values[f"{prefix}{key}"] = value
    return values


def holder_of(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the dict that holds a dotted key, and the last part of the key: ``holder[last]`` is its value."""
    head, dot, rest = key.partition(".")
    inner = config.get(head) if dot and key not in config else None
    return holder_of(inner, rest) if isinstance(inner, dict) else (config, key)
