"""What trials of a sweep that ran out of memory have found: how many pieces a training batch has to be cut into.

Heads share it through Ray while the driver lives. A configuration is like another one if they differ in floats only: a
learning rate or a dropout takes no memory, a width or a batch size does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tunelight.compat.ray import keep_for_job, kept_for_job
from tunelight.trial.trial import Trial


def recall(trial: Trial) -> int:
    """Return the number of pieces with which a trial with a configuration like this one's has trained; else 1."""
    return int(kept_for_job(_name(trial)) or 1)


def remember(trial: Trial, pieces: int) -> None:
    """Note that a trial trains with its batches in so many pieces."""
    keep_for_job(_name(trial), str(pieces))


def _name(trial: Trial) -> str:
    said = f"{trial.folder.parent}\n{without_floats(trial.config)!r}"
    return f"pieces/{hashlib.sha256(said.encode()).hexdigest()}"


def without_floats(config: Any) -> Any:
    """Return a configuration as sorted pairs and lists, without its floats."""
    if isinstance(config, Mapping):
        kept = {str(key): value for key, value in config.items() if not isinstance(value, float)}
        return [(key, without_floats(kept[key])) for key in sorted(kept)]
    if isinstance(config, list | tuple):
        return [without_floats(value) for value in config if not isinstance(value, float)]
    return config
