"""The data of figures, read from results: reported values, and values of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tunelight.errors import MetricError, unknown
from tunelight.record import is_better, metric_value
from tunelight.results.figures.style import Values, is_wide, text
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.results.figures.sweep import Sweep, Trial

WHEN: Final = frozenset({"epoch", "training_iteration", "timestamp"})
"""Keys of a report that are not the user's metrics."""
_MOST_TRIALS: Final = 2 / 3
"""The share of trials that must have reached the epoch at which they are compared."""
MISSING: Final = "(not set)"
"""Shown for a key that a configuration lacks, because it is conditional."""
_LOG_DOMAINS: Final = frozenset({"loguniform", "qloguniform", "lograndint", "qlograndint"})
_EVEN_DOMAINS: Final = frozenset({"uniform", "quniform", "randint", "qrandint", "randn", "qrandn"})


def judged_by(results: Sweep) -> tuple[str, str]:
    """Return the sweep's metric and mode; of several, the first."""
    return results.metric or "metric", results.mode


def metrics_of(results: Sweep) -> list[str]:
    """Return the names of all reported numbers, in order; nested ones as ``outer/inner``."""
    names: dict[str, None] = {}
    for trial in list(results.record.trials.values()):
        for report in (trial.history[0], trial.history[-1]) if trial.history else ():
            names.update(dict.fromkeys(_numbers(report)))
    return [name for name in names if name not in WHEN]


def _numbers(report: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}"


def check_metric(results: Sweep, metric: str) -> str:
    """Return ``metric`` if it was reported or the sweep is judged by it. Raises: MetricError for another."""
    valid = metrics_of(results)
    if metric not in valid and metric not in (judged_by(results)[0], *dict(results.objectives)):
        raise MetricError(
            unknown(f"No trial of {results.name} reported a number as", metric, valid, listed="Reported were")
        )
    return metric


def best_of(trial: Trial, metric: str, mode: str) -> float:
    """Return a trial's best finite value of a metric over all its reports; NaN without one."""
    best = math.nan
    for report in trial.history:
        value = metric_value(report, metric)
        if value is not None and math.isfinite(value) and (math.isnan(best) or is_better(value, best, mode)):
            best = value
    return best


def values_of(results: Sweep, metric: str | None = None, mode: str | None = None) -> Values:
    """Return each trial's best value of a metric (default: the sweep's); NaN if there is none."""
    first, how = judged_by(results)
    if metric is None or (metric == first and mode in (None, how)):
        return np.array([math.nan if trial.value is None else trial.value for trial in results.trials], dtype=float)
    return np.array([best_of(trial, metric, mode or how) for trial in results.trials], dtype=float)


def same_epoch(results: Sweep, metric: str, mode: str) -> tuple[int, Values]:
    """Return the last epoch that most trials reached, and each trial's best value up to it; NaN for those that did not.

    A trial that was stopped early had less time to improve than others, so that values of different epochs would tell
    of the scheduler rather than of the configurations. Epochs are counted from 1; reports without one count themselves.
    """
    curves = [
        [(progress(report), value) for report in trial.history if (value := _finite(report, metric)) is not None]
        for trial in results.trials
    ]
    reached = sorted((curve[-1][0] for curve in curves if curve), reverse=True)
    if not reached:
        return 0, np.full(len(curves), math.nan)
    epoch = reached[math.ceil(_MOST_TRIALS * len(reached)) - 1]
    found = [
        [value for at, value in curve if at <= epoch] if curve and curve[-1][0] >= epoch else [] for curve in curves
    ]
    choose = max if mode == "max" else min
    return epoch, np.array([choose(values) if values else math.nan for values in found], dtype=float)


def _finite(report: Mapping[str, Any], metric: str) -> float | None:
    value = metric_value(report, metric)
    return value if value is not None and math.isfinite(value) else None


def best_report(results: Sweep, metric: str) -> Values:
    """Return the value of a metric in each trial's best report, the best by the sweep's metric; NaN without one."""
    found = [metric_value(trial.metrics, metric) for trial in results.trials]
    return np.array([math.nan if value is None else value for value in found], dtype=float)


def failed_in(results: Sweep) -> Values:
    """Return which trials failed, as booleans; those are never the best."""
    return np.array([trial.failed for trial in results.trials], dtype=bool)


def progress(report: Mapping[str, Any]) -> int:
    """Return how many epochs were trained at a report; if it does not say, its number."""
    epoch = report.get("epoch")
    return epoch + 1 if isinstance(epoch, int) else int(report.get("training_iteration") or 0)


def rung_reached(results: Sweep, trial: Trial) -> int | None:
    """Return how many rungs a trial has reached; None if the rungs are not known."""
    return reached(results.record.sweep.get("rungs"), trial.history)


def rung_names(results: Sweep) -> list[str]:
    """Return the rungs as a legend names them: "rung 2 of 3 (epoch 4)"; none if they are not known."""
    rungs = results.record.sweep.get("rungs") or {}
    by, at = str(rungs.get("by")), rungs.get("at") or []
    if by == "training_iteration":
        last = [trial.history[-1] for trial in results.trials if trial.history]
        by = "epoch" if all(progress(one) == one.get(by) and one.get("epoch") is not None for one in last) else "report"
    return [f"rung {number} of {len(at)} ({text(by)} {place:g})" for number, place in enumerate(at, start=1)]


def reached(rungs: Mapping[str, Any] | None, history: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many of a record's ``rungs`` a trial with this history has reached; None if that is unknown."""
    if not rungs or not rungs["at"]:
        return None
    if not history:
        return 0
    done = history[-1].get(rungs["by"])
    return None if not isinstance(done, int | float) else sum(done >= milestone for milestone in rungs["at"])


@dataclass(frozen=True)
class Column:
    """One key of the search space, with its value in each of some trials."""

    key: str
    raw: tuple[Any, ...]
    """MISSING if a configuration lacks the key."""
    numeric: bool
    even: bool | None = None
    """Whether it was searched evenly (True) or on a logarithmic scale (False); None if that is not known."""

    @property
    def log(self) -> bool:
        """Tell whether its axis is logarithmic: as it was searched, else by its values."""
        if not self.numeric:
            return False
        known = self.numbers[self.there]
        return is_wide(known) if self.even is None else not self.even and bool((known > 0).all())

    @property
    def there(self) -> Values:
        """For which trials it is set, as booleans."""
        return np.array([value is not MISSING for value in self.raw], dtype=bool)

    @property
    def numbers(self) -> Values:
        """The values as numbers, NaN if not set; other values by their index in ``labels``."""
        if self.numeric:
            return np.array([math.nan if value is MISSING else float(value) for value in self.raw], dtype=float)
        place = {label: index for index, label in enumerate(self.labels)}
        return np.array([math.nan if value is MISSING else place[_label(value)] for value in self.raw], dtype=float)

    @property
    def labels(self) -> list[str]:
        """The different values as text: numbers among them by size, then the others."""
        found = {_label(value): value for value in self.raw if value is not MISSING}
        return sorted(found, key=lambda label: _order(found[label], label))


def columns(trials: Iterable[Trial], space: Mapping[str, Any] | None = None) -> list[Column]:
    """Return the keys that differ between trials, in the order of the configurations.

    ``space`` is the search space as ``sweep.yaml`` has it.
    """
    configs = [flatten(trial.plain_config) for trial in trials]
    keys = dict.fromkeys(key for config in configs for key in config)
    even = _searched_evenly(space or {})
    made = [_column(key, tuple(config.get(key, MISSING) for config in configs), even.get(key)) for key in keys]
    return [column for column in made if len({_label(value) for value in column.raw}) > 1]


def _searched_evenly(space: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each key that has a domain of numbers whether that is an even one, no logarithmic one."""
    found = {}
    for path in flatten(space):
        key, _, domain = path.rpartition(".")
        if domain in _LOG_DOMAINS | _EVEN_DOMAINS:
            found[key] = domain in _EVEN_DOMAINS
    return found


def _column(key: str, raw: tuple[Any, ...], even: bool | None) -> Column:
    numeric = all(value is MISSING or _is_number(value) for value in raw)
    return Column(key, raw, numeric, even)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _label(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _order(value: Any, label: str) -> tuple[bool, float, str]:
    is_number = _is_number(value)
    return (not is_number, float(value) if is_number else 0.0, label)
