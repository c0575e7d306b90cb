"""The command `tunelight`: it parses and calls. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from tunelight.cli import best, doctor, figures, inspect, planning, sweeps
from tunelight.cli.app import app, main

__all__ = ["app", "main"]
