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
from tests.world.curves import KEY, SEED_KEY, Curve, deal
from tunelight.space.space import SearchSpace

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
    """Return a task's table, read once."""
    return _read((folder or FOLDER) / f"{task}.npz")


@functools.cache
def _read(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as file:
        head = json.loads(str(file["head"]))
        metrics = {name: file[f"metric/{name}"] for name in head["modes"]}
        parts = (head["about"], head["modes"], head["space"], tuple(head["without_effect"]), head["configs"])
        return Table(*parts, file["seconds"], metrics)


class TableCurves:
    """The curves of one task: arrays of configurations x seeds x epochs.

    Args:
        metrics: name -> array; NaN from where training diverged.
        seconds: an epoch on one worker, for each configuration.
        metric, mode: what trials are judged by unless told otherwise.
        epochs: None: as recorded. Fewer: the first ones. More: each epoch shows the recorded one at the same share of
            training.
        epoch_s: seconds of every epoch on one worker (None: as recorded).
        space: the search space of the configurations, as ``SearchSpace`` reads it.
        without_effect: keys that change nothing; looking up the nearest configuration ignores them.
    """

    def __init__(
        self,
        task: str,
        metrics: Mapping[str, Any],
        seconds: Any,
        configs: Sequence[Mapping[str, Any]],
        *,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        epochs: int | None = None,
        epoch_s: float | None = None,
        space: Mapping[str, Any] | None = None,
        without_effect: Sequence[str] = (),
    ) -> None:
        self.task = task
        self.metric = metric
        self.mode = mode
        self.without_effect = tuple(without_effect)
        self._space = space
        self._metrics = {name: np.asarray(values, dtype=np.float32) for name, values in metrics.items()}
        self._seconds = np.asarray(seconds, dtype=float)
        self._configs = list(configs)
        self.size, self._seeds, recorded = self._metrics[metric].shape
        self.epochs = epochs or recorded
        self._index = [min(i if self.epochs <= recorded else i * recorded // self.epochs, recorded - 1)
                       for i in range(self.epochs)]  # fmt: skip
        self._epoch_s = epoch_s
        self._made: dict[tuple[int, int], Curve] = {}

    @functools.cached_property
    def space(self) -> SearchSpace:
        """The search space that the configurations are a sample of."""
        return SearchSpace(self._space or {})

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number``, with one of its recorded seeds."""
        index = deal(number, self.size, seed)
        chosen = int(uniform(seed, number, self.size) * self._seeds)
        return {**self._configs[index], KEY: f"{index}:{chosen}"}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return the curve that a configuration names, else that of the nearest one.

        Near is what differs little by rank among the recorded values, summed over the keys that both have.
        """
        index, seed = self._place(config)
        made = self._made.get((index, seed))
        if made is None:
            metrics = {name: values[index, seed][self._index].tolist() for name, values in self._metrics.items()}
            seconds = float(self._seconds[index]) if self._epoch_s is None else self._epoch_s
            made = self._made[index, seed] = Curve(metrics, seconds, self.epochs)
        return made

    def again(self, config: Mapping[str, Any], repetition: int) -> dict[str, Any]:
        """Return the configuration with another of its recorded seeds, as long as there are others."""
        return {**config, SEED_KEY: self._place(config)[1] + repetition}

    def truth(self, config: Mapping[str, Any]) -> float:
        """Return how good a configuration is: the best value over epochs, averaged over the recorded seeds.

        A seed that never had a finite value makes it infinitely bad.
        """
        return float(self._truths[self._place(config)[0]])

    @functools.cached_property
    def _truths(self) -> Any:
        """The truth of each configuration."""
        values = self._metrics[self.metric][:, :, self._index].astype(float)
        worst = math.inf if self.mode == "min" else -math.inf
        values = np.where(np.isfinite(values), values, worst)
        return (values.min(2) if self.mode == "min" else values.max(2)).mean(1)

    def _place(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return which configuration and which of its seeds is meant."""
        if KEY in config:
            index, seed = (int(part) for part in str(config[KEY]).split(":"))
        else:
            index = self._nearest(config)
            seed = int(uniform(index) * self._seeds)
        return index, int(config.get(SEED_KEY, seed)) % self._seeds

    def _nearest(self, config: Mapping[str, Any]) -> int:
        distance = np.zeros(self.size)
        for key in (key for key in config if key in self._columns):
            (ordered, ranks), value = self._columns[key], config[key]
            if ordered is None:
                distance += ranks != str(value)
            else:
                distance += np.abs(ranks - np.searchsorted(ordered, value)) / self.size
        return int(np.argmin(distance))

    @functools.cached_property
    def _columns(self) -> dict[str, tuple[Any, Any]]:
        """Of each key with an effect: its numbers in order and all configurations' ranks; or None and their texts."""
        columns: dict[str, tuple[Any, Any]] = {}
        for key in self._configs[0]:
            if key in self.without_effect:
                continue
            values = [config.get(key) for config in self._configs]
            if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
                numbers = np.array(values, float)
                ordered = np.sort(numbers)
                columns[key] = (ordered, np.searchsorted(ordered, numbers))
            else:
                columns[key] = (None, np.array([str(value) for value in values], object))
        return columns


def recorded(
    task: str,
    *,
    folder: Path | None = None,
    epochs: int | None = None,
    epoch_s: float | None = None,
    metric: str = "loss",
) -> TableCurves:
    """Return a task's recorded curves."""
    table = read_table(task, folder)
    return TableCurves(
        task,
        table.metrics,
        table.seconds,
        table.configs,
        metric=metric,
        mode=table.modes[metric],
        epochs=epochs,
        epoch_s=epoch_s,
        space=table.space,
        without_effect=table.without_effect,
    )
