"""The recorded curves: one file for each task in the folder ``tables``."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.world.costs import uniform
from tests.world.curves import KEY, Curve, deal

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
        configs: the configurations.
        seconds: an epoch on one worker, for each configuration.
        metrics: name -> array of configurations x seeds x epochs; NaN from where training diverged.
    """

    about: str
    modes: Mapping[str, Literal["min", "max"]]
    space: Mapping[str, Any]
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


@functools.cache
def read_table(task: str) -> Table:
    """Return a task's table, read once."""
    return read_file(FOLDER / f"{task}.npz")


def read_file(path: Path) -> Table:
    """Return the table that a file holds."""
    with np.load(path, allow_pickle=False) as file:
        head = json.loads(str(file["head"]))
        metrics = {name: file[f"metric/{name}"] for name in head["modes"]}
        return Table(head["about"], head["modes"], head["space"], head["configs"], file["seconds"], metrics)


class TableCurves:
    """The curves of one task: arrays of configurations x seeds x epochs.

    Args:
        metrics: name -> array; NaN from where training diverged.
        seconds: an epoch on one worker, for each configuration.
        metric, mode: what trials are judged by unless told otherwise.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        seconds: Any,
        configs: Sequence[Mapping[str, Any]],
        *,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
    ) -> None:
        self.metric = metric
        self.mode = mode
        self._metrics = {name: np.asarray(values, dtype=np.float32) for name, values in metrics.items()}
        self._seconds = np.asarray(seconds, dtype=float)
        self._configs = list(configs)
        self.size, self._seeds, self.epochs = self._metrics[metric].shape
        self._made: dict[tuple[int, int], Curve] = {}

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number``, with one of its recorded seeds."""
        index = deal(number, self.size, seed)
        chosen = int(uniform(seed, number, self.size) * self._seeds)
        return {**self._configs[index], KEY: f"{index}:{chosen}"}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return the curve that a configuration names."""
        index, seed = self._place(config)
        made = self._made.get((index, seed))
        if made is None:
            metrics = {name: values[index, seed].tolist() for name, values in self._metrics.items()}
            made = self._made[index, seed] = Curve(metrics, float(self._seconds[index]), self.epochs)
        return made

    def again(self, config: Mapping[str, Any], repetition: int) -> dict[str, Any]:
        """Return the configuration with another of its recorded seeds, as long as there are others."""
        index, seed = self._place(config)
        return {**config, KEY: f"{index}:{(seed + repetition) % self._seeds}"}

    def truth(self, config: Mapping[str, Any]) -> float:
        """Return how good a configuration is: the best value over epochs, averaged over the recorded seeds.

        A seed that never had a finite value makes it infinitely bad.
        """
        return float(self._truths[self._place(config)[0]])

    @functools.cached_property
    def _truths(self) -> Any:
        """The truth of each configuration."""
        values = self._metrics[self.metric].astype(float)
        worst = math.inf if self.mode == "min" else -math.inf
        values = np.where(np.isfinite(values), values, worst)
        return (values.min(2) if self.mode == "min" else values.max(2)).mean(1)

    def _place(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return which configuration and which of its seeds is meant."""
        index, seed = str(config[KEY]).split(":")
        return int(index), int(seed)


def recorded(task: str, *, epoch_s: float | None = None) -> TableCurves:
    """Return a task's recorded curves; ``epoch_s``: seconds of every epoch on one worker (None: as recorded)."""
    table = read_table(task)
    seconds = table.seconds if epoch_s is None else np.full(len(table.configs), epoch_s)
    return TableCurves(table.metrics, seconds, table.configs)
