"""The command `tunelight`: it parses and calls. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from tunelight.cli.app import app, main

# The order of these imports is that of the commands in `tunelight --help`.
# isort: off
from tunelight.cli import sweeps
from tunelight.cli import listing
from tunelight.cli import inspect
from tunelight.cli import notes
from tunelight.cli import manage
from tunelight.cli import best
from tunelight.cli import figures
from tunelight.cli import web
from tunelight.cli import planning
from tunelight.cli import doctor
from tunelight.cli import steer
from tunelight.cli import standing
# isort: on

__all__ = ["app", "main"]
