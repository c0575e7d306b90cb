"""What all peers share: the number of torch's threads, and each rank's file of events."""

from __future__ import annotations

import importlib
import json
import os
import sys
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


def import_ray_train_lightning() -> None:
    """Import `ray.train.lightning` with pytorch_lightning, as the peers do: it would take `lightning` if that is there.

    Call it on a worker before its names are imported from there.
    """
    sys.modules["lightning"] = None  # type: ignore[assignment]  # which means: there is no such module
    try:
        importlib.import_module("ray.train.lightning")
    finally:
        del sys.modules["lightning"]
