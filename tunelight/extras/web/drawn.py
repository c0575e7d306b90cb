"""Make the sections of a sweep's page, or of a comparison of several sweeps, in a process of its own.

Figures need all reports in memory, and optuna; the server needs neither.

    python -m tunelight.extras.web.drawn TARGET FOLDER [FOLDER ...]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tunelight.errors import TunelightError
from tunelight.extras.report.comparison import compared
from tunelight.extras.report.sections import parts
from tunelight.results import SweepResults

COMPARISON = "comparison"


def draw(target: Path, folders: list[str]) -> None:
    """Write a file of JSON for each section of one sweep; of several, one file that compares them."""
    try:
        several = [SweepResults.load(folder) for folder in folders]
        made: dict[str, Any] = dict(parts(several[0])) if len(several) == 1 else {COMPARISON: compared(several)}
    except TunelightError as error:
        section = {"title": "", "blocks": [{"text": str(error)}]}
        made = {COMPARISON: {"sweeps": section}} if len(folders) > 1 else {"about": section}
    for name, section in made.items():
        (target / f"{name}.json").write_text(json.dumps(section, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    os.nice(5)  # the sweep comes first
    draw(Path(sys.argv[1]), sys.argv[2:])
