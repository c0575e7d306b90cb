"""How many pieces training batches must be cut into, as trials that ran out of memory have found.

Heads share it through Ray while the driver lives; a resumed sweep's driver takes it from the record. Configurations are
alike if they differ in floats only: a learning rate or a dropout takes no memory, a width or a batch size does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tunelight.compat.ray import keep_for_job, kept_for_job


def recall(sweep: Path, config: Mapping[str, Any]) -> int:
    """Return the number of pieces with which a trial with a configuration like ``config`` has trained; else 1.

    ``sweep``: the folder of the sweep.
    """
    return int(kept_for_job(_name(sweep, config)) or 1)


def remember(sweep: Path, config: Mapping[str, Any], pieces: int) -> None:
    """Note that a trial of a sweep trains with its batches in so many pieces; the most that one has needed counts."""
    keep_for_job(_name(sweep, config), str(max(pieces, recall(sweep, config))))


def _name(sweep: Path, config: Mapping[str, Any]) -> str:
    said = f"{sweep}\n{without_floats(config)!r}"
    return f"pieces/{hashlib.sha256(said.encode()).hexdigest()}"


def without_floats(config: Any) -> Any:
    """Return a configuration as sorted pairs, lists and plain values, without its floats.

    Other objects become text that is the same in each process.
    """
    if isinstance(config, Mapping):
        kept = {str(key): value for key, value in config.items() if not _is_float(value)}
        return [(key, without_floats(kept[key])) for key in sorted(kept)]
    if isinstance(config, list | tuple):
        return [without_floats(value) for value in config if not _is_float(value)]
    if config is None or isinstance(config, bool | str):
        return config
    return int(config) if isinstance(config, Integral) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(config))


def _is_float(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, Integral)
