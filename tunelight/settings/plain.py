"""Settings as plain data for sweep.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from tunelight.checkpoints.policy import Checkpoints
from tunelight.policies import FailurePolicy
from tunelight.settings.code import import_path
from tunelight.settings.proxy import Proxy
from tunelight.settings.repeats import Repeats
from tunelight.settings.warm import WarmStart


def plain_setting(value: Any) -> Any:
    """Return a setting's value as plain data; code as its import path."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_setting(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_setting(item) for item in value]
    if isinstance(value, Checkpoints | FailurePolicy):
        return asdict(value)
    if isinstance(value, Proxy | Repeats | WarmStart):
        return value.plain()
    if isinstance(value, type) or callable(value):
        return import_path(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return {"object": import_path(type(value))}
