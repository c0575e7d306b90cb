"""Costs of a simulation, and learning curves: what trials report at each epoch; recorded ones are in ``tables``."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, Protocol

import numpy as np

FOLDER = Path(__file__).with_name("tables")
_KEY = "_curve"
"""The key of a simulated configuration that names its curve."""
_NORMAL = NormalDist()
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Costs:
    """The costs of a simulation, in seconds unless stated otherwise.

    Starts and resizes default to what two CPU workers took on one 2-core machine; ``reserve_s`` is
    assumed, and the rest is not charged. ``benchmarks/fidelity.py`` measures yours.

    Args:
        reserve_s: a placement group and the trial's head, until Tune calls the trial running.
        start_cold_s: the start of a gang's workers up to the first epoch: processes, imports, meeting.
        start_warm_s: the same for a gang that has trained another trial before.
        report_s: a report whose answer is awaited, until the gang goes on.
        end_s: from a trial's last report until Tune gets its end.
        checkpoint_s: a checkpoint for a pause, until it is written, or read.
        grow_s: new workers of a gang that grows, while the others train on.
        resize_s: a change of a gang's size at a report's boundary, while all wait.
        efficiency: of each doubling of workers (1: twice as fast; 0.8: 1.6 times; below 0.5: slower than before).
        noise: sigma of the lognormal noise of one rank's epoch; the gang takes as long as its slowest rank.
    """

    reserve_s: float = 0.2
    start_cold_s: float = 5.4
    start_warm_s: float = 0.1
    report_s: float = 0.0
    end_s: float = 0.0
    checkpoint_s: float = 0.0
    grow_s: float = 5.4
    resize_s: float = 0.1
    efficiency: float = 1.0
    noise: float = 0.0

    def speedup(self, workers: int) -> float:
        """Return how many times as fast as one worker a gang is."""
        return float((2 * self.efficiency) ** math.log2(workers))

    def epoch_s(self, alone_s: float, workers: int, max_workers: int, draw: float) -> float:
        """Return the seconds of an epoch that takes ``alone_s`` on one worker.

        ``workers`` play the parts of ``max_workers`` logical ones, in ceil(max_workers / workers) turns per step
        (decision 0004). ``draw`` in (0, 1) sets the noise: the maximum of n draws is the quantile draw ** (1 / n).
        """
        turns = math.ceil(max_workers / workers)
        overhead = workers / self.speedup(workers)
        seconds = alone_s * turns / max_workers * overhead
        if self.noise:
            seconds *= math.exp(self.noise * _NORMAL.inv_cdf(draw ** (1 / workers)))
        return seconds


def uniform(*key: int) -> float:
    """Return a number in (0, 1) determined by whole numbers, by splitmix64 (Steele et al., OOPSLA 2014)."""
    state = 0
    for part in key:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state + 0.5) / (_MASK + 1)


@dataclass(frozen=True)
class Curve:
    """The reports of a training, ``metrics[name][epoch]``; ``seconds``: of an epoch on a single worker.

    A trial that trains past their end goes on reporting the last value.
    """

    metrics: Mapping[str, Sequence[float]]
    seconds: float

    def at(self, number: int) -> dict[str, float]:
        """Return report ``number`` (from 1)."""
        return {name: float(values[min(number, len(values)) - 1]) for name, values in self.metrics.items()}


class Curves(Protocol):
    """The configurations and curves of a simulation's trials, and what these are judged by."""

    metric: str
    mode: Literal["min", "max"]
    epochs: int

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number`` (from 0) of a simulation with this seed."""

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return a configuration's curve."""


def deal(number: int, size: int, seed: int) -> int:
    """Return which of ``size`` curves trial ``number`` gets: all in a random order, then all in another, and so on.

    A Feistel network over the smallest even number of bits that holds ``size`` is a permutation; results beyond
    ``size`` go through it again (cycle walking; Black and Rogaway, CT-RSA 2002).
    """
    deck, card = divmod(number, size)
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = card >> half, card & mask
        for turn in range(4):
            left, right = right, left ^ int(uniform(seed, deck, turn, right) * (mask + 1))
        card = left << half | right
        if card < size:
            return card


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


def write_table(path: Path, table: Table) -> Path:
    """Write a table to a file, which appears when it is complete."""
    head = {name: getattr(table, name) for name in ("about", "modes", "space", "configs")}
    arrays = {f"metric/{name}": np.clip(table.metrics[name], -6e4, 6e4) for name in table.modes}  # float16's end
    small = {name: values.astype(np.float16) for name, values in arrays.items()}
    seconds = np.asarray(table.seconds, dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez_compressed(file, head=np.array(json.dumps(head)), seconds=seconds, **small)
    draft.replace(path)
    return path


@functools.cache
def read_table(task: str, folder: Path = FOLDER) -> Table:
    """Return a task's table, read once."""
    with np.load(folder / f"{task}.npz", allow_pickle=False) as file:
        head = json.loads(str(file["head"]))
        metrics = {name: file[f"metric/{name}"] for name in head["modes"]}
        return Table(head["about"], head["modes"], head["space"], head["configs"], file["seconds"], metrics)


class TableCurves:
    """The curves of one task, with one of the recorded seeds for each trial.

    Args:
        table: as it was recorded.
        metric: what trials are judged by.
        seconds: an epoch on one worker, of each configuration or of all (None: as recorded).
    """

    def __init__(self, table: Table, metric: str = "loss", seconds: Any = None) -> None:
        self.metric, self.mode = metric, table.modes[metric]
        self._metrics = {name: np.asarray(values, dtype=np.float32) for name, values in table.metrics.items()}
        self._configs = table.configs
        self.size, self._seeds, self.epochs = self._metrics[metric].shape
        self._seconds = np.broadcast_to(np.asarray(table.seconds if seconds is None else seconds, float), self.size)
        self._made: dict[tuple[int, int], Curve] = {}

    def config(self, number: int, seed: int) -> dict[str, Any]:
        """Return the configuration of trial ``number``, with one of its recorded seeds."""
        index = deal(number, self.size, seed)
        chosen = int(uniform(seed, number, self.size) * self._seeds)
        return {**self._configs[index], _KEY: f"{index}:{chosen}"}

    def curve(self, config: Mapping[str, Any]) -> Curve:
        """Return the curve that a configuration names."""
        index, seed = self._place(config)
        made = self._made.get((index, seed))
        if made is None:
            metrics = {name: values[index, seed].tolist() for name, values in self._metrics.items()}
            made = self._made[index, seed] = Curve(metrics, float(self._seconds[index]))
        return made

    def again(self, config: Mapping[str, Any], repetition: int) -> dict[str, Any]:
        """Return the configuration with another of its recorded seeds, as long as there are others."""
        index, seed = self._place(config)
        return {**config, _KEY: f"{index}:{(seed + repetition) % self._seeds}"}

    def truth(self, config: Mapping[str, Any]) -> float:
        """Return how good a configuration is: the best value over epochs, averaged over the recorded seeds.

        A seed that never had a finite value makes it infinitely bad.
        """
        values = self._metrics[self.metric][self._place(config)[0]].astype(float)
        values = np.where(np.isfinite(values), values, math.inf if self.mode == "min" else -math.inf)
        return float((values.min(1) if self.mode == "min" else values.max(1)).mean())

    def _place(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return which configuration and which of its seeds is meant."""
        index, seed = str(config[_KEY]).split(":")
        return int(index), int(seed)


def recorded(task: str, seconds: Any = None) -> TableCurves:
    """Return a task's recorded curves, judged by their loss."""
    return TableCurves(read_table(task), seconds=seconds)
