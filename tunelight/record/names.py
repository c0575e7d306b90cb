"""The names of a sweep's files."""

from __future__ import annotations

from typing import Final

SWEEP_FILE: Final = "sweep.yaml"
RECORD_FILE: Final = "record.jsonl"
OWNERS: Final = "owners"
"""The folder that names the drivers which a sweep has had."""
COMMANDS_FILE: Final = "commands.jsonl"
EVENTS_END: Final = ".tunelight"
"""The suffix of the driver's own TensorBoard files in trials' folders, where trials may write others."""


def why(error: OSError) -> str:
    """Return what went wrong, in the operating system's words."""
    return error.strerror or str(error)
