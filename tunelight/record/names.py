"""What the files of a sweep are called, and what is said where one cannot be had."""

from __future__ import annotations

from typing import Final

SWEEP_FILE: Final = "sweep.yaml"
RECORD_FILE: Final = "record.jsonl"
METRICS_FILE: Final = "metrics.jsonl"
LOCK_FILE: Final = "driver.lock"
STUDY_FILE: Final = "study.journal"
EVENTS_END: Final = ".tunelight"
"""How the driver's own TensorBoard files end, in trials' folders, where trials may write some too."""


def why(error: OSError) -> str:
    """Return what went wrong, in the operating system's words."""
    return error.strerror or str(error)
