"""The command `tunelight`: it parses and calls. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tunelight.cli.app import app, main

__all__ = ["app", "main"]

# In the order of `tunelight --help`. Those of optional rooms (tunelight/machine/optional.py) may be missing.
_FILES = (
    "sweeps", "listing", "inspect", "manage", "best", "reproduce", "figures", "web", "planning", "tuning",
    "steer", "mcp",
)  # fmt: skip
for _name in _FILES:
    if find_spec(f"{__name__}.{_name}") is not None:
        import_module(f"{__name__}.{_name}")
