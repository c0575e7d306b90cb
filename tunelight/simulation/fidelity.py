"""The error of simulated sweeps, as benchmarks/fidelity.py measured it and wrote it beside the curves."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

FILE = "fidelity.json"


def fidelity_path() -> Path:
    """Return the path of the last calibration's result, which may be missing."""
    return Path(str(files("tunelight.simulation").joinpath(FILE)))


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def fidelity_note(path: Path | None = None) -> str:
    """Return the sentence that belongs beside every simulated figure."""
    found = _read(path or fidelity_path())
    if not found:
        return "not calibrated: benchmarks/fidelity.py has not been run here"
    return (
        f"makespans of {found['sweeps']} live sweeps ({found['where']}) were met within "
        f"{100 * found['largest_error']:.0f} %, {100 * found['median_error']:.0f} % in the median"
    )
