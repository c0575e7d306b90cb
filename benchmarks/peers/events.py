"""What every peer shares: torch's threads in each worker, and the file that a rank writes what happened to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

THREADS = 1
"""Threads of torch in every worker of every peer."""


def write_event(folder: str | Path, rank: int, trial: int, event: str, **fields: Any) -> None:
    """Append what happened on ``rank`` to that rank's file; one short write, safe from any process."""
    line = {"trial": trial, "event": event, "time": time.time(), "pid": os.getpid(), **fields}
    with (Path(folder) / f"events-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
