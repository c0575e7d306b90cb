"""Figures of benchmarks: medians, tables, and the lines of the table of all figures in docs/measurements.md."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))  # a benchmark imports this first, and then what peers share
NAN = math.nan
FIGURES = "TUNELIGHT_BENCHMARK_FIGURES"
"""The environment variable by which all.py names the file of a benchmark's figures."""


def median(values: Iterable[float]) -> float:
    """Return the median of what is a number, or NaN where nothing is."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else NAN


def show(value: float, digits: int = 2) -> str:
    """Return a number as text, ``-`` for one that was not measured."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def middle_and_most(values: Iterable[float], digits: int = 2) -> list[str]:
    """Return median and maximum of what is a number, as two cells of a table."""
    known = [value for value in values if not math.isnan(value)]
    return [show(median(known), digits), show(max(known, default=NAN), digits)]


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return aligned text."""
    widths = [max(len(row[column]) for row in [head, *lines]) for column in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *lines]]
    rule = ["-" * width for width in widths]
    return "\n".join("  ".join(row).rstrip() for row in [padded[0], rule, *padded[1:]])


def headline(
    what: str, value: float, unit: str = "x", *, of: str = "", most: float = NAN, least: float = NAN, digits: int = 2
) -> bool:
    """Print one of the figures by which a benchmark is known; return False for one that misses its goal.

    all.py puts it into docs/measurements.md. ``of`` says of how many repeats it is, and how they spread; ``most`` or
    ``least`` is the goal. A value that is NaN was not measured and is left out.
    """
    if math.isnan(value):
        return True
    figure = "never" if math.isinf(value) else f"{show(value, digits)} {unit}".rstrip()
    figure = f"{figure} ({of})" if of else figure
    goal = f"at most {most:.3g}" if not math.isnan(most) else "" if math.isnan(least) else f"at least {least:.3g}"
    missed = value > most or value < least
    print(f"{what}: {figure}" + (f"; {goal}: {'MISSED' if missed else 'met'}" if goal else ""))
    if (path := os.environ.get(FIGURES)) is not None:
        row = {"what": what, "figure": figure, "goal": f"{goal}, missed" if missed else goal}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return not missed


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Return how many repeats there were, and from where to where they went."""
    numbers = [value for value in values if not math.isnan(value)]
    span = f", {show(min(numbers), digits)} to {show(max(numbers), digits)}" if len(numbers) > 1 else ""
    return f"n = {len(numbers)}{span}"
