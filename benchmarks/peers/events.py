"""What all peers share: the number of torch's threads, and each rank's file of events."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

THREADS = 1
"""Threads of torch in every worker of every peer."""


def write_event(folder: str | Path, rank: int, trial: int, event: str, **fields: Any) -> None:
    """Append an event to the file of ``rank``; one short write, safe from any process."""
    line = {"trial": trial, "event": event, "time": time.time(), "pid": os.getpid(), **fields}
    with (Path(folder) / f"events-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
