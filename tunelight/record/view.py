"""A sweep as plain data, from the record's state alone: columns, rows, standing, rungs and curves.

Terminal, live page, report and notebook lay out these values, and compute none of their own.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunelight.record.outcomes import STOPPED
from tunelight.record.state import SweepState, TrialState, metric_value
from tunelight.settings.checks import flatten

STARTING: Final = "STARTING"
"""The state shown of a trial that is RUNNING and whose workers have not met yet."""
CELL: Final = 160
"""Characters of a value in a row."""
_MOST_POINTS: Final = 128
_MOST_KEYS: Final = 40
_MOST_RUNGS: Final = 12
_MOST_VALUES: Final = 64
"""Values of a hyperparameter that are told apart, to see which vary most."""
WHEN: Final = ("timestamp", "epoch", "training_iteration")
"""Keys of a report that say when it came."""
_LEVELS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Column:
    """A column of the table of trials: its heading, and the path to its value in a row.

    ``kind`` is "trial", "state", "time", "parameter" (a hyperparameter), or "" for other values.
    """

    name: str
    path: tuple[str, ...]
    kind: str = ""

    def of(self, row: Mapping[str, Any]) -> Any:
        """Return the value of a row; None where it has none."""
        value: Any = row
        for part in self.path:
            value = value.get(part)
            if value is None:
                return None
        return value


class ColumnStats:
    """What some trials have that others may lack: hyperparameters, a reason to stop, a parent."""

    def __init__(self, trials: Iterable[TrialState] = ()) -> None:
        self._values: dict[str, set[str]] = {}
        self.why = self.branches = False
        for trial in trials:
            self.add(trial)

    def add(self, trial: TrialState) -> None:
        """Add a trial, or what is new of one."""
        for key, value in flatten(trial.config).items():
            values = self._values.setdefault(str(key), set())
            if len(values) < _MOST_VALUES:
                values.add(repr(value))
        self.why = self.why or trial.why is not None
        self.branches = self.branches or trial.branch is not None

    @property
    def keys(self) -> list[str]:
        """The hyperparameters, in order; those that are equal in all trials last."""
        return sorted(self._values, key=lambda key: len(self._values[key]) == 1)

    @property
    def by_variety(self) -> list[str]:
        """The hyperparameters, those with most values first."""
        return sorted(self._values, key=lambda key: -len(self._values[key]))


def columns(state: SweepState, seen: ColumnStats) -> list[Column]:
    """Return the columns of the table of trials: results, hyperparameters, then what a trial took."""
    metric = metric_of(state)
    return [
        Column("trial", ("i",), "trial"),
        Column("state", ("state",), "state"),
        Column(f"best {metric}", ("value",)),
        *(Column(name, ("more", name)) for name in state.further),
        *(Column(key, ("config", key), "parameter") for key in seen.keys[:_MOST_KEYS]),
        Column(f"last {metric}", ("last",)),
        Column(f"{unit(state.trials.values())}s", ("at",)),
        Column("time", ("seconds",), "time"),
        Column("workers", ("workers",)),
        *([Column("why", ("why",))] if seen.why else []),
        *([Column("branch of", ("branch",))] if seen.branches else []),
    ]


def row(state: SweepState, trial: TrialState, now: float | None = None) -> dict[str, Any]:
    """Return a trial as JSON has it. With ``now``, ``seconds`` counts until then, else up to ``since``."""
    last = trial.history[-1] if trial.history else {}
    best = {} if trial.best is None else trial.history[trial.best]
    metric = metric_of(state)
    config = list(flatten(trial.config).items())
    return {
        "i": trial.index,
        "state": state_of(trial),
        "value": plain(trial.value),
        "last": plain(last.get(metric, metric_value(last, metric))),
        "more": {name: plain(metric_value(best, name)) for name in state.further},
        "at": progress(last) if last else None,
        "seconds": round(trial.seconds, 1) if now is None else trial.elapsed(now),
        "since": trial.since,
        "workers": trial.workers,
        "why": trial.why,
        "branch": None if (branch := trial.branch) is None else f"{branch.parent} after report {branch.number}",
        "config": {str(key): plain(value) for key, value in config[:_MOST_KEYS]},
        "left": max(0, len(config) - _MOST_KEYS),
    }


def rungs(state: SweepState) -> list[dict[str, Any]]:
    """Return how many trials have come to each rung, went past it, and were stopped there; none if it is not known."""
    known = state.sweep.get("rungs") or {}
    found = [{"at": at, "reached": 0, "passed": 0, "stopped": 0} for at in (known.get("at") or [])[:_MOST_RUNGS]]
    for trial in state.searched if found else ():
        if (done := trial.done) is None:
            continue
        reached = [rung for rung in found if done >= rung["at"]]
        for rung in reached:
            rung["reached"] += 1
            rung["passed"] += done > rung["at"]
        if reached and trial.state == STOPPED:
            reached[-1]["stopped"] += 1
    return found if any(rung["reached"] for rung in found) else []


class Curve:
    """A metric over a trial's reports: of more than 128 points every other is left out, but for the last."""

    __slots__ = ("_count", "_every", "_last", "_xs", "_ys")

    def __init__(self) -> None:
        self._xs, self._ys = array("d"), array("d")
        self._count, self._every = 0, 1
        self._last: tuple[float, float] | None = None

    def add(self, report: Mapping[str, Any], value: float | None) -> None:
        """Add a point at the end, unless there is no value."""
        if value is None:
            return
        x = float(progress(report))
        self._last = None
        if self._count % self._every:
            self._last = x, value
        else:
            self._xs.append(x)
            self._ys.append(value)
        self._count += 1
        if len(self._xs) > _MOST_POINTS:
            self._xs, self._ys = self._xs[::2], self._ys[::2]
            self._every *= 2

    def points(self) -> tuple[list[float], list[float]]:
        """Return where its points are, and their values."""
        last = () if self._last is None else (self._last,)
        return [*self._xs, *(x for x, _ in last)], [*self._ys, *(y for _, y in last)]


def curve_of(history: Iterable[Mapping[str, Any]], metric: str) -> Curve:
    """Return the curve of a trial, of all its reports."""
    made = Curve()
    for report in history:
        made.add(report, finite(report, metric))
    return made


def finite(report: Mapping[str, Any], metric: str | None) -> float | None:
    """Return a metric of a report; None where it is no finite number."""
    value = metric_value(report, metric)
    return value if value is not None and math.isfinite(value) else None


def sparkline(values: Sequence[float], width: int, levels: str = _LEVELS) -> str:
    """Return numbers as at most ``width`` characters of different heights, each for the mean of equally many."""
    size = max(1, math.ceil(len(values) / width))
    means = [sum(part) / len(part) for at in range(0, len(values), size) if (part := values[at : at + size])]
    low, high = min(means), max(means)
    span = high - low
    if not span or not math.isfinite(span):
        return levels[0] * len(means)
    return "".join(levels[min(int((mean - low) / span * len(levels)), len(levels) - 1)] for mean in means)


def metric_of(state: SweepState) -> str:
    """Return the name of the sweep's metric; of several, the first."""
    metric = state.sweep.get("metric") or "metric"
    return metric if isinstance(metric, str) else str(metric[0])


def state_of(trial: TrialState) -> str:
    """Return a trial's state as it is shown."""
    return STARTING if trial.starting else trial.state


def epochs(report: Mapping[str, Any]) -> int | None:
    """Return how many epochs a report has seen (Lightning counts them from 0)."""
    epoch = report.get("epoch")
    return epoch + 1 if isinstance(epoch, int) else None


def progress(report: Mapping[str, Any]) -> int:
    """Return how many epochs were trained at a report; if it does not say, its number."""
    return epochs(report) or int(report.get("training_iteration") or 0)


def unit(trials: Iterable[TrialState]) -> str:
    """Return what is counted: "epoch", or "report" where no report says its epoch."""
    last = [trial.history[-1] for trial in list(trials) if trial.history]
    return "report" if last and all(epochs(report) is None for report in last) else "epoch"


def numbers_in(report: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of a report's numbers; nested ones as ``outer/inner``."""
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and key not in WHEN:
            yield f"{prefix}{key}"


def plain(value: Any, limit: int = CELL) -> Any:
    """Return a value that JSON can hold and a row can show: a number, a truth value, None, or text that is cut."""
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 1 << 53 else str(value)[:limit]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
