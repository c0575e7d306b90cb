"""The sweep of benchmarks/resumed.py, in a process that is killed: FOLDER NAME SETTINGS, the last as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import tunelight as tl

SPACE = "digits_mlp"


def settings_of(text: str) -> dict[str, Any]:
    """Return a sweep's settings from JSON, where {"folds": 3} as ``repeats`` means folds."""
    settings: dict[str, Any] = json.loads(text)
    if isinstance(settings.get("repeats"), dict) and "folds" in settings["repeats"]:
        settings["repeats"] = tl.Folds(**settings["repeats"])
    return settings


if __name__ == "__main__":
    folder, name, given = sys.argv[1:]
    results = tl.run(
        SPACE, name=name, storage=folder, workers=2, cpus_per_worker=0.5, seed=1, resume=True, progress=False,
        **settings_of(given),
    )  # fmt: skip
    print(results.summary())
