"""Draw the figures of a sweep, or a comparison of several, in a process of its own: ``python -m`` this module.

Figures need all reports in memory, and optuna; the server needs neither.

    python -m tunelight.reporting.web.drawn TARGET FOLDER [FOLDER ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tunelight.errors import TunelightError
from tunelight.reporting.comparison import compared
from tunelight.reporting.how_run import how_it_was_run
from tunelight.reporting.markup import safe
from tunelight.reporting.page import figure_sections
from tunelight.results import SweepResults

COMPARISON = "comparison"
HOW = "how"


def draw(target: Path, folders: list[str]) -> None:
    """Write a file of HTML for each figure of one sweep; of several, one file that compares them."""
    try:
        several = [SweepResults.load(folder) for folder in folders]
        if len(several) == 1:
            parts = {**figure_sections(several[0]), HOW: how_it_was_run(several[0])}
        else:
            parts = {COMPARISON: "\n".join(compared(several)[1])}
    except TunelightError as error:
        parts = {COMPARISON if len(folders) > 1 else HOW: f"<p>{safe(error)}</p>"}
    for name, html in parts.items():
        (target / f"{name}.html").write_text(html, encoding="utf-8")


if __name__ == "__main__":
    os.nice(5)  # the sweep comes first
    draw(Path(sys.argv[1]), sys.argv[2:])
