"""Recorded curves on disk: one file for each task, in the folder ``tables``."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tunelight.errors import SettingsError, guess

FOLDER = Path(__file__).with_name("tables")
LARGEST = 6e4
"""Values beyond it are written as this number: float16 ends at 65,504."""


@dataclass(frozen=True)
class Table:
    """The curves of one task as they were recorded.

    Args:
        about: data, model and loss.
        modes: name of a metric -> what is better.
        space: the search space, in the form that ``tunelight.SearchSpace`` reads.
        without_effect: keys of the space that change nothing.
        configs: the configurations.
        seconds: an epoch on one worker, for each configuration.
        metrics: name -> array of configurations x seeds x epochs; NaN from where training diverged.
    """

    about: str
    modes: Mapping[str, Literal["min", "max"]]
    space: Mapping[str, Any]
    without_effect: tuple[str, ...]
    configs: Sequence[Mapping[str, Any]]
    seconds: Any
    metrics: Mapping[str, Any]

    @staticmethod
    def rounded(values: Any) -> Any:
        """Return values as a file keeps them."""
        return np.clip(values, -LARGEST, LARGEST).astype(np.float16)


def write_table(path: Path, table: Table) -> Path:
    """Write a table to a file, which appears when it is complete."""
    head = {
        "about": table.about,
        "modes": dict(table.modes),
        "space": dict(table.space),
        "without_effect": list(table.without_effect),
        "configs": [dict(config) for config in table.configs],
    }
    arrays = {f"metric/{name}": Table.rounded(table.metrics[name]) for name in table.modes}
    seconds = np.asarray(table.seconds, dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez_compressed(file, head=np.array(json.dumps(head)), seconds=seconds, **arrays)
    draft.replace(path)
    return path


def tasks(folder: Path | None = None) -> list[str]:
    """Return the names of the recorded tasks; ``folder`` holds their tables (None: those that come along)."""
    return sorted(path.stem for path in (folder or FOLDER).glob("*.npz"))


def read_table(task: str, folder: Path | None = None) -> Table:
    """Return a task's table, read once. Raises: SettingsError for an unknown task."""
    folder = folder or FOLDER
    known = tasks(folder)
    if task not in known:
        there = f"There are: {', '.join(known)}." if known else f"There are no recorded curves in {folder}."
        raise SettingsError(f"There are no recorded curves of a task {task!r}.{guess(task, known)} {there}")
    return _read(folder / f"{task}.npz")


@functools.cache
def _read(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as file:
        head = json.loads(str(file["head"]))
        metrics = {name: file[f"metric/{name}"] for name in head["modes"]}
        parts = (head["about"], head["modes"], head["space"], tuple(head["without_effect"]), head["configs"])
        return Table(*parts, file["seconds"], metrics)
