"""Sources of curves: the recorded table, or a sweep's record."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tunelight.errors import SettingsError, guess
from tunelight.simulation.costs import uniform
from tunelight.simulation.curves import KEY, SEED_KEY, Curve, Curves, deal
from tunelight.simulation.sweeps import SweepCurves

TABLE = "curves.npz"


class TableCurves:
    """The curves of one task: arrays of configurations x seeds x epochs.

    Args:
        task: its name.
        metrics: name -> array; NaN from where training diverged.
        seconds: an epoch on one worker, for each configuration.
        configs: the configurations.
        metric, mode: what is judged where nobody says.
        note: what they are.
        epochs: stretch or cut them to so many epochs (None: as recorded). Fewer: the first ones. More: each epoch
            shows what the recorded one at the same share of training did.
        epoch_s: let every configuration take so many seconds an epoch on one worker (None: as recorded).
    """

    def __init__(
        self,
        task: str,
        metrics: Mapping[str, Any],
        seconds: Any,
        configs: Any,
        *,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        note: str | None = None,
        epochs: int | None = None,
        epoch_s: float | None = None,
    ) -> None:
        self.task = task
        self.metric = metric
        self.mode = mode
        self._metrics = {name: np.asarray(values, dtype=np.float32) for name, values in metrics.items()}
        self._seconds = np.asarray(seconds, dtype=float)
        self._configs = list(configs)
        self.size, self._seeds, recorded = self._metrics[metric].shape
        self.epochs = epochs or recorded
        self._index = [min(i if self.epochs <= recorded else i * recorded // self.epochs, recorded - 1)
                       for i in range(self.epochs)]  # fmt: skip
        self._epoch_s = epoch_s
        self.note = note or f"curves of task {task!r}: {self.size} configurations, {self._seeds} seeds each"
        self._made: dict[tuple[int, int], Curve] = {}

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number``, with one of its recorded seeds."""
        index = deal(number, self.size, seed)
        chosen = int(uniform(seed, number, self.size) * self._seeds)
        return {**_loaded(self._configs[index]), KEY: f"{index}:{chosen}"}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return the curve that a configuration names, else that of the nearest one.

        Near is what differs little by rank among the recorded values, summed over the keys that both have.
        Raises: SettingsError where no key is known.
        """
        index, seed = self._which(config)
        made = self._made.get((index, seed))
        if made is None:
            metrics = {name: values[index, seed][self._index].tolist() for name, values in self._metrics.items()}
            seconds = float(self._seconds[index]) if self._epoch_s is None else self._epoch_s
            made = self._made[index, seed] = Curve(metrics, seconds, self.epochs)
        return made

    def again(self, config: Mapping[str, Any], repetition: int) -> dict[str, Any]:
        """Return the configuration with another of its recorded seeds, as long as there are others."""
        return {**config, SEED_KEY: self._which(config)[1] + repetition}

    def _which(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return which configuration and which seed's curve is meant."""
        if KEY in config:
            index, seed = (int(part) for part in str(config[KEY]).split(":"))
        else:
            index = self._nearest(config)
            seed = int(uniform(index) * self._seeds)
        return index, int(config.get(SEED_KEY, seed)) % self._seeds

    def _nearest(self, config: Mapping[str, Any]) -> int:
        known = [key for key in config if key in self._columns]
        if not known:
            raise SettingsError(
                f"The configuration {dict(config)!r} has none of the keys that the curves of {self.task!r} have: "
                f"{', '.join(self._columns)}. Search those, or simulate without searcher=."
            )
        distance = np.zeros(self.size)
        for key in known:
            column, value = self._columns[key], config[key]
            if column.dtype == object:
                distance += column != str(value)
            else:
                ordered = np.sort(column)
                distance += np.abs(np.searchsorted(ordered, column) - np.searchsorted(ordered, value)) / self.size
        return int(np.argmin(distance))

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        """All values of each key, as numbers or text."""
        configs = [_loaded(config) for config in self._configs]
        columns = {}
        for key in configs[0]:
            values = [config.get(key) for config in configs]
            plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
            columns[key] = np.array(values if plain else [str(value) for value in values], float if plain else object)
        return columns


def _loaded(config: Any) -> dict[str, Any]:
    return dict(config) if isinstance(config, Mapping) else dict(json.loads(str(config)))


def table_path() -> Path:
    """Return the path of the recorded table, which may be missing."""
    return Path(str(files("tunelight.simulation").joinpath(TABLE)))


@functools.cache
def read_table(path: str) -> dict[str, Any]:
    """Return a table's arrays by name, read once."""
    with np.load(path, allow_pickle=False) as table:
        return {name: table[name] for name in table.files}


def tasks(path: Path | None = None) -> list[str]:
    """Return the names of the recorded tasks."""
    path = path or table_path()
    if not path.is_file():
        return []
    return sorted({name.rpartition("/")[0] for name in read_table(str(path))})


def recorded(
    task: str,
    *,
    path: Path | None = None,
    epochs: int | None = None,
    epoch_s: float | None = None,
    metric: str = "loss",
) -> TableCurves:
    """Return a task's recorded curves. Raises: SettingsError for an unknown one."""
    path = path or table_path()
    known = tasks(path)
    if task not in known:
        there = f"There are: {', '.join(known)}." if known else f"There is no table of recorded curves ({path.name})."
        raise SettingsError(f"There are no recorded curves of a task {task!r}.{guess(task, known)} {there}")
    table = read_table(str(path))
    names = [name.rpartition("/")[2] for name in table if name.rpartition("/")[0] == task]
    metrics = {name: table[f"{task}/{name}"] for name in names if name not in ("seconds", "configs")}
    return TableCurves(
        task,
        metrics,
        table[f"{task}/seconds"],
        table[f"{task}/configs"],
        metric=metric,
        mode="max" if metric == "accuracy" else "min",
        epochs=epochs,
        epoch_s=epoch_s,
    )


def curves_of(given: Any) -> Curves:
    """Return curves by a task's name, a sweep's folder or results, or as they are. Raises: SettingsError."""
    if all(hasattr(given, name) for name in ("config", "curve", "epochs", "size")):
        curves: Curves = given
        return curves
    if isinstance(given, str) and given in tasks():
        return recorded(given)
    folder = getattr(given, "folder", given)
    if isinstance(folder, str | os.PathLike) and Path(folder).is_dir():
        return SweepCurves(folder)
    raise SettingsError(
        f"curves must be a recorded task ({', '.join(tasks()) or 'there are none'}), a sweep's folder, SweepResults, "
        f"or an object with the methods of tunelight.simulation.Curves, not {given!r}."
    )
