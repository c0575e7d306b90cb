"""What benchmarks/transfer.py is computed from: the same configurations trained narrow, wide, and wide with rescaling.

``record`` trains what is missing and adds it to a file; ``pack`` writes the tables beside this file.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transfer_fits import plain_fit
from transfer_tasks import EPOCHS, TASKS, Data, Net, Task

import tunelight as tl
from tunelight.extras.widths.check import measure

FOLDER = Path(__file__).with_name("transfer")
SEEDS = 2
CONFIGS = 64
VARIANTS = ("narrow", "wide", "rescaled")


@dataclass(frozen=True)
class Table:
    """A task's recorded trainings.

    Attributes:
        configs: what was trained.
        losses: by variant, [configs, seeds, epochs].
        seconds: by variant, of an epoch of each configuration on one processor, [configs].
        check_s: processor's seconds of the coordinate check that ``proxy=`` makes before a sweep.
    """

    task: str
    configs: Sequence[Mapping[str, Any]]
    losses: Mapping[str, np.ndarray]
    seconds: Mapping[str, np.ndarray]
    check_s: float

    def best(self, variant: str) -> np.ndarray:
        """Return each training's best loss, [configs, seeds]."""
        found: np.ndarray = self.losses[variant].min(2)
        return found


def configurations(task: Task, count: int) -> list[dict[str, Any]]:
    """Return the first configurations of a task, the same ones each time; to four digits, as the table has them."""
    space, rng = tl.SearchSpace(dict(task.space)), np.random.RandomState(0)
    return [{key: float(f"{value:.4g}") for key, value in space.sample(rng).items()} for _ in range(count)]


def check_seconds(task: Task) -> float:
    """Return the processor's seconds of the coordinate check."""
    config = configurations(task, 1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        measure(lambda width: Net(task.name, width, **config), Data(task.name), task.narrow)
    return time.process_time() - began


def _known(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return what was recorded; a line that was cut off is trained again."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[entry["task"], entry["config"], entry["variant"], entry["seed"]] = entry
    return found


def record(path: Path, tasks: Sequence[str], count: int, epochs: int = EPOCHS) -> None:
    """Train what is not in the file yet, and add it; it can be stopped at any time and called again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known, configs = _known(path), {name: configurations(TASKS[name], count) for name in tasks}
    jobs = [(name, -1, "check", 0) for name in tasks]
    jobs += [
        (name, at, one, seed) for at in range(count) for name in tasks for seed in range(SEEDS) for one in VARIANTS
    ]
    for name, at, variant, seed in jobs:
        if (name, at, variant, seed) in known:
            continue
        task, entry = TASKS[name], {"task": name, "config": at, "variant": variant, "seed": seed}
        if variant == "check":
            entry["seconds"] = check_seconds(task)
        else:
            width = task.narrow if variant == "narrow" else task.wide
            fit = plain_fit(task, width, configs[name][at], seed, rescaled=variant == "rescaled", epochs=epochs)
            entry |= {"seconds": fit.seconds, "losses": fit.losses}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        sys.stderr.write(f"{name} {at} {variant} {seed}\n")


def pack(path: Path, tasks: Sequence[str], folder: Path = FOLDER) -> None:
    """Write a table of each task: of the configurations whose trainings are all there."""
    known = _known(path)
    folder.mkdir(parents=True, exist_ok=True)
    for name in tasks:
        whole = 0
        while all((name, whole, variant, seed) in known for variant in VARIANTS for seed in range(SEEDS)):
            whole += 1

        def entries(variant: str, at: int, task: str = name) -> list[dict[str, Any]]:
            return [known[task, at, variant, seed] for seed in range(SEEDS)]

        made = {
            "task": name,
            "check_s": _short(known[name, -1, "check", 0]["seconds"]),
            "configs": configurations(TASKS[name], whole),
            "seconds": {
                variant: [
                    _short(float(np.mean([one["seconds"] for one in entries(variant, at)]))) for at in range(whole)
                ]
                for variant in VARIANTS
            },
            "losses": {
                variant: [
                    [[_short(loss) for loss in one["losses"]] for one in entries(variant, at)] for at in range(whole)
                ]
                for variant in VARIANTS
            },
        }
        text = json.dumps(made, separators=(",", ":")).replace("[[[", "\n[[[").replace("]],[[", "]],\n[[")
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def read(name: str, folder: Path = FOLDER) -> Table:
    """Return a task's table."""
    held = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    losses = {variant: np.array(held["losses"][variant]) for variant in VARIANTS}
    seconds = {variant: np.array(held["seconds"][variant]) for variant in VARIANTS}
    return Table(name, held["configs"], losses, seconds, held["check_s"])
