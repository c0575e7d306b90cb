"""Record learning curves of real training for the simulator: tests/world/tables/NAME.npz.

    python benchmarks/record_curves.py                            # all eight tasks of peers/curve_tasks.py: 20 minutes
    python benchmarks/record_curves.py --tasks wine-mlp           # one of them; others can be recorded beside it
    python benchmarks/record_curves.py --short                    # three configurations, two epochs, for CI

Each task has a sample of its search space, drawn with a fixed seed, and each configuration is trained from two seeds
on one thread. It can be stopped and started again: what is in ``--parts`` stays. With all parts of a task there, its
table is written. The task mnist1d-cnn needs the package mnist1d, which generates its data. The tables of the digits
are older: `git show 9f84c912:benchmarks/record_digits_curves.py` recorded them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from curve_tasks import TASKS, Task, rows_of

import tunelight as tl
from tests.world.curves import FOLDER, Table, write_table

SEEDS = 2
CONFIGS = 400
PART = 10
"""Configurations in one part, the unit that is trained or not."""


def configurations(task: Task, count: int) -> list[dict[str, Any]]:
    """Return the first ``count`` configurations of a task, the same ones each time."""
    space, rng = tl.SearchSpace(task.space), np.random.RandomState(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [space.sample(rng) for _ in range(count)]


def record(task: Task, config: Mapping[str, Any], epochs: int) -> tuple[dict[str, list[list[float]]], float]:
    """Return the curves by metric, [seeds, epochs] each, and the processor's seconds in the median epoch."""
    rows_of(task.data)  # its making is no part of an epoch
    curves: dict[str, list[list[float]]] = {}
    took = []
    for seed in range(SEEDS):
        training = task.start(config, seed)
        reports = []
        for _ in range(epochs):
            begin, trained = time.process_time(), not training.diverged
            reports.append(training.epoch())
            if trained:
                took.append(time.process_time() - begin)
        for name in reports[0]:
            curves.setdefault(name, []).append([report[name] for report in reports])
    return curves, float(np.median(took))


def record_part(path: Path, task: Task, configs: Sequence[Mapping[str, Any]], epochs: int) -> None:
    """Train the configurations of one part and write it at once."""
    curves, seconds = zip(*(record(task, config, epochs) for config in configs), strict=True)
    arrays = {name: np.array([one[name] for one in curves]) for name in curves[0]}
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez(file, seconds=np.array(seconds), **arrays)  # type: ignore[arg-type]  # none is called allow_pickle
    draft.replace(path)


def pack(task: Task, parts: Sequence[Path], configs: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the table of a task's parts."""
    loaded = [dict(np.load(path)) for path in parts]
    arrays = {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0]}
    seconds = arrays.pop("seconds")
    modes: dict[str, Literal["min", "max"]] = {name: "max" if name == "accuracy" else "min" for name in arrays}
    made = Table(task.about, modes, dict(task.space), list(configs), seconds, arrays)
    return write_table(folder / f"{task.name}.npz", made)


def record_task(task: Task, parts: Path, folder: Path, count: int, epochs: int) -> None:
    """Record what is missing of a task, then write its table."""
    parts.mkdir(parents=True, exist_ok=True)
    configs = configurations(task, count)
    done = []
    for first in range(0, count, PART):
        path = parts / f"{task.name}-{first:04d}.npz"
        if not path.exists():
            record_part(path, task, configs[first : first + PART], epochs)
        done.append(path)
    out = pack(task, done, configs, folder)
    print(f"{task.name}: {count} configurations: {out} ({out.stat().st_size / 1e3:.0f} kB)", flush=True)


def main() -> int:
    """Record what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="which (default: all)")
    parser.add_argument("--configs", type=int, default=CONFIGS, help="so many configurations of each task")
    parser.add_argument("--parts", type=Path, default=Path("runs", "curves"), help="where finished parts are kept")
    parser.add_argument("--short", action="store_true", help="three configurations a task for two epochs, not kept")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.short:
        for name in asked.tasks:
            record_task(TASKS[name], asked.parts, FOLDER, asked.configs, TASKS[name].epochs)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.tasks:
            try:
                record_task(TASKS[name], Path(folder, "parts"), Path(folder), 3, 2)
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
