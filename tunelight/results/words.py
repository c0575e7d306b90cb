"""Numbers and errors in words."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping

from tunelight.record import percent


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 trial``, ``2 trials``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return a number as in a row: ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def used(peak: Mapping[str, float], cpus: float | None = None) -> dict[str, str]:
    """Return in words what the workers of a trial used at most, and how busy their GPUs were.

    ``cpus``: how many each of them had.
    """
    found = {}
    if "memory" in peak:
        found["peak memory of a worker"] = megabytes(peak["memory"])
    if "cpu" in peak:
        found["CPUs used"] = f"{peak['cpu']:.1f}" + (f" of {cpus:g}" if cpus else "")
    if "gpu_memory" in peak:
        total = f" of {megabytes(peak['gpu_memory_total'])}" if "gpu_memory_total" in peak else ""
        found["peak memory of its GPUs"] = f"{megabytes(peak['gpu_memory'])}{total}"
    if "mean_gpu" in peak:
        found["GPUs busy"] = percent(peak["mean_gpu"])
    return found


def megabytes(count: float) -> str:
    """Return a number of megabytes with its unit: ``612 MB``, ``1.2 GB``."""
    return f"{count:.0f} MB" if count < 950 else f"{count / 1000:.1f} GB"


def refused(error: pickle.UnpicklingError) -> str:
    """Return what torch refused to load, without the advice on torch.load that torch gives at length."""
    found = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
    return str(error) if found is None else f"it holds {found[1]}"
