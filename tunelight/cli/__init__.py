"""The command `tunelight`: it parses and calls. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from importlib import import_module

from tunelight.cli.app import app, main

__all__ = ["app", "main"]

# In the order of `tunelight --help`.
_FILES = ("sweeps", "listing", "inspect", "figures", "tuning", "steer")
for _name in _FILES:
    import_module(f"{__name__}.{_name}")
