"""Figures of benchmarks: of peers' runs, as tables, and for the table of all figures in docs/measurements.md."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import Run

NAN = math.nan
FIGURES = "TUNELIGHT_BENCHMARK_FIGURES"
"""The environment variable by which all.py names the file of a benchmark's figures."""


@dataclass
class Row:
    """All runs of one peer."""

    key: str
    title: str
    runs: list[Run] = field(default_factory=list)
    skipped: str | None = None

    @property
    def good(self) -> list[Run]:
        """The runs that ended as they should."""
        return [run for run in self.runs if run.error is None]

    @property
    def warm_s(self) -> float:
        """Seconds a trial over all but the first, changing trials included; median of the runs."""
        return median(warm_seconds(run.trials) for run in self.good)

    @property
    def first_report_s(self) -> float:
        """Seconds from starting the peer's process to its first report; median of the runs."""
        return median(first_report(run.trials) - run.begin for run in self.good)

    @property
    def cold_start_s(self) -> float:
        """Seconds from calling the peer's job, its driver's imports done, to its first report; median."""
        return median(first_report(run.trials) - run.called for run in self.good if run.called)

    @property
    def trials_a_minute(self) -> float:
        """Trials a minute from starting the peer's process to its result; median of the runs."""
        return median(60 * len(run.trials) / (run.done - run.begin) for run in self.good if run.done)

    @property
    def peak_mb(self) -> float:
        """Peak memory of the process tree in MB, from the runs in which it was sampled."""
        return max((run.peak_mb for run in self.good if run.peak_mb is not None), default=NAN)

    @property
    def epochs(self) -> int:
        """Epochs trained in the first good run, all trials together."""
        return sum(trial["epochs"] for trial in self.good[0].trials) if self.good else 0

    @property
    def trials(self) -> int:
        """Trials in the first good run."""
        return len(self.good[0].trials) if self.good else 0

    @property
    def accuracy(self) -> float:
        """The best accuracy that was reported."""
        return max((trial.get("acc", NAN) for run in self.good for trial in run.trials), default=NAN)

    @property
    def threads(self) -> str:
        """The threads of torch in every worker and OMP_NUM_THREADS, each value that was seen."""
        trials = [trial for run in self.good for trial in run.trials]
        torch_threads = sorted({count for trial in trials for count in trial["threads"].values()})
        omp = sorted({str(trial.get("omp")) for trial in trials})
        workers = max((len(trial["threads"]) for trial in trials), default=0)
        return f"{workers} x {'/'.join(map(str, torch_threads)) or '-'} (OMP {'/'.join(omp) or '-'})"

    def switch_ms(self, event: str) -> float:
        """Milliseconds from a trial's last report to the next one's ``enter`` or ``first_batch``."""
        return median(
            1000 * (later[event] - last_report(earlier))
            for run in self.good
            for earlier, later in pairwise(run.trials)
            if event in later and earlier["validated"]
        )

    @property
    def report_ms(self) -> float:
        """Milliseconds that rank 0 spends in a report that lets it go on; median of all."""
        return median(
            1000 * (after - before)
            for run in self.good
            for trial in run.trials
            for before, after in zip(trial["validated"], trial["reported"], strict=False)
        )


def median(values: Iterable[float]) -> float:
    """Return the median of what is a number, or NaN where nothing is."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else NAN


def warm_seconds(trials: Sequence[dict[str, Any]]) -> float:
    """Return the seconds a trial from the end of the first to the end of the last; NaN for one trial."""
    if len(trials) < 2:
        return NAN
    ends = sorted(trial["end"] for trial in trials)
    return float(ends[-1] - ends[0]) / (len(ends) - 1)


def first_report(trials: Sequence[dict[str, Any]]) -> float:
    """Return when the first report of a run was made, in seconds of the wall clock."""
    return min((trial["first_report"] for trial in trials if trial["first_report"]), default=NAN)


def last_report(trial: dict[str, Any]) -> float:
    """Return when a trial's last report returned, or began where it ended the trial."""
    return float(max(trial["validated"][-1:] + trial["reported"][-1:]))


def difference(row: Row, floor: Row) -> float:
    """Return the largest difference in loss between two rows at the epochs that both trained."""
    if not row.good or not floor.good:
        return NAN
    expected = {trial["trial"]: trial["loss"] for trial in floor.good[0].trials}
    return max(
        (
            abs(ours - theirs)
            for trial in row.good[0].trials
            for ours, theirs in zip(trial["loss"], expected.get(trial["trial"], []), strict=False)
        ),
        default=NAN,
    )


def show(value: float, digits: int = 2) -> str:
    """Return a number as text, ``-`` for one that was not measured."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def verdict(name: str, ratio: float, most: float = NAN, least: float = NAN, digits: int = 2) -> str:
    """Return one ratio as a line that says whether it is what was asked."""
    target = f"at most {most:g}" if math.isnan(least) else f"at least {least:g}"
    if math.isnan(ratio):
        return f"{name}: not measured ({target})"
    return f"{name}: {ratio:.{digits}f} ({target}: {'MISSED' if ratio > most or ratio < least else 'met'})"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool) -> str:
    """Return aligned text, or a Markdown table."""
    widths = [max(len(row[column]) for row in [head, *lines]) for column in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *lines]]
    rule = ["-" * width for width in widths]
    if markdown:
        return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], rule, *padded[1:]])
    return "\n".join("  ".join(row).rstrip() for row in [padded[0], rule, *padded[1:]])


def headline(
    what: str, value: float, unit: str = "x", *, of: str = "", most: float = NAN, least: float = NAN, digits: int = 2
) -> None:
    """Declare one of the figures by which a benchmark is known: all.py puts it into docs/measurements.md.

    ``of`` says of how many repeats it is, and how they spread; ``most`` or ``least`` is the goal. A value that is NaN
    was not measured and is left out. Outside of all.py this does nothing.
    """
    path = os.environ.get(FIGURES)
    if path is None or math.isnan(value):
        return
    figure = "never" if math.isinf(value) else f"{show(value, digits)} {unit}".rstrip()
    goal = f"at most {most:.3g}" if not math.isnan(most) else "" if math.isnan(least) else f"at least {least:.3g}"
    row = {
        "what": what,
        "figure": f"{figure} ({of})" if of else figure,
        "goal": f"{goal}, missed" if value > most or value < least else goal,
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Return how many repeats there were, and from where to where they went."""
    numbers = [value for value in values if not math.isnan(value)]
    span = f", {show(min(numbers), digits)} to {show(max(numbers), digits)}" if len(numbers) > 1 else ""
    return f"n = {len(numbers)}{span}"
