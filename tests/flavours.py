"""The Lightning that a session of tests runs with: ``pytest --lightning lightning`` chooses ``lightning.pytorch``.

Tests take what they need of it from tunelight.compat.lightning, and the rest by these functions.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

from tunelight.compat.lightning import FABRIC, VARIABLE, Flavour, flavour

PACKAGES: Final = ("pytorch_lightning", "lightning")
"""What ``--lightning`` takes."""


def module(name: str) -> Any:
    """Return a module of the session's Lightning that ``pl`` does not have as an attribute: ``module("cli")``."""
    return import_module(f"{flavour()}.{name}")


def other() -> Flavour:
    """Return the flavour that the session does not run with."""
    return next(known for known in FABRIC if known != flavour())


def written(code: str) -> str:
    """Return a script that imports ``pytorch_lightning`` as one that imports the session's Lightning."""
    return code.replace("pytorch_lightning", flavour())


def as_a_user() -> dict[str, str]:
    """Return the environment without the session's choice, for programs whose imports choose."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def result_collection() -> Any:
    """Return Lightning's class of what a loop has logged."""
    return module("trainer.connectors.logger_connector.result")._ResultCollection
