"""The data of figures, read from results: reported values, and values of hyperparameters."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from tunelight.errors import MetricError, unknown
from tunelight.extras.optuna_versions import quiet
from tunelight.record import OUTCOMES
from tunelight.record.view import finite, numbers_in, progress
from tunelight.settings.checks import flatten
from tunelight.space.kinds import even_scales

if TYPE_CHECKING:
    from optuna import Study

    from tunelight.results import SweepResults, TrialResult


_MOST_TRIALS: Final = 2 / 3
"""The share of trials that must have reached the epoch at which they are compared."""
MISSING: Final = object()
"""The value of a key that a configuration lacks, because it is conditional."""


def chosen_metric(results: SweepResults, metric: str | None) -> str:
    """Return a metric that was reported or that the sweep is judged by, by default the first. Raises: MetricError."""
    first = results.metric or "metric"
    if metric in (None, first):
        return first
    histories = [trial.history for trial in list(results.record.trials.values()) if trial.history]
    ends = (report for history in histories for report in (history[0], history[-1]))
    valid = dict.fromkeys(name for report in ends for name in numbers_in(report))
    if metric not in valid and metric not in dict(results.objectives):
        raise MetricError(
            unknown(f"No trial of {results.folder.name} reported a number as", metric, valid, listed="Reported were")
        )
    return str(metric)


def values_of(results: SweepResults, metric: str, mode: str) -> Values:
    """Return each trial's best value of a metric; NaN if there is none."""
    if (metric, mode) == (results.metric, results.mode):
        return np.array([trial.value for trial in results.trials], dtype=float)  # which reads no reports
    best_of = max if mode == "max" else min
    reported = ([finite(report, metric) for report in trial.history] for trial in results.trials)
    best = [best_of((value for value in values if value is not None), default=math.nan) for values in reported]
    return np.array(best, dtype=float)


def same_epoch(results: SweepResults, metric: str, mode: str) -> tuple[int, Values]:
    """Return the last epoch that most trials reached, and each trial's best value up to it; NaN for those that did not.

    A trial that was stopped early had less time to improve than others, so that values of different epochs would tell
    of the scheduler rather than of the configurations. Epochs are counted from 1; reports without one count themselves.
    """
    curves = [
        [(progress(report), value) for report in trial.history if (value := finite(report, metric)) is not None]
        for trial in results.trials
    ]
    reached = sorted((curve[-1][0] for curve in curves if curve), reverse=True)
    if not reached:
        return 0, np.full(len(curves), math.nan)
    epoch = reached[math.ceil(_MOST_TRIALS * len(reached)) - 1]
    choose = max if mode == "max" else min
    best = [
        choose(value for at, value in curve if at <= epoch) if curve and curve[-1][0] >= epoch else math.nan
        for curve in curves
    ]
    return epoch, np.array(best, dtype=float)


def failed_in(results: SweepResults) -> Values:
    """Return which trials failed, as booleans; those are never the best."""
    return np.array([trial.failed for trial in results.trials], dtype=bool)


def rung_names(results: SweepResults) -> list[str]:
    """Return the rungs as a legend names them: "rung 2 of 3 (epoch 4)"; none if they are not known."""
    rungs = results.record.sweep.get("rungs") or {}
    by, at = str(rungs.get("by")), rungs.get("at") or []
    if by == "training_iteration":
        last = [trial.history[-1] for trial in results.trials if trial.history]
        by = "epoch" if all(progress(row) == row.get(by) and row.get("epoch") is not None for row in last) else "report"
    return [f"rung {number} of {len(at)} ({text(by)} {place:g})" for number, place in enumerate(at, start=1)]


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
        numbers = [value for value in self.raw if value is not MISSING] if self.numeric else []
        return is_wide(numbers) if self.even is None else not self.even and min(numbers, default=0) > 0

    @property
    def there(self) -> Values:
        """For which trials it is set, as booleans."""
        return np.array([value is not MISSING for value in self.raw], dtype=bool)

    @property
    def values(self) -> list[Any]:
        """The values as numbers, or else as text; MISSING stays."""
        shown = float if self.numeric else _label
        return [value if value is MISSING else shown(value) for value in self.raw]

    @property
    def differs(self) -> bool:
        """Tell whether trials have different values."""
        return len({value for value in self.values if value is not MISSING}) > 1

    def some(self, at: Values) -> Column:
        """Return the column for some of the trials, by their positions or as booleans."""
        places = np.arange(len(self.raw))[at]
        return Column(self.key, tuple(self.raw[place] for place in places), self.numeric, self.even)


def columns(trials: Iterable[TrialResult], space: Mapping[str, Any] | None = None) -> list[Column]:
    """Return the keys that differ between trials, in the order of their names, which is Optuna's.

    ``space`` is the search space as ``sweep.yaml`` has it.
    """
    configs = [flatten(trial.plain_config) for trial in trials]
    keys = sorted({key for config in configs for key in config})
    even = even_scales(space or {})
    made = []
    for key in keys:
        raw = tuple(config.get(key, MISSING) for config in configs)
        numeric = all(value is MISSING or _is_number(value) for value in raw)
        if len({value if value is MISSING else _label(value) for value in raw}) > 1:
            made.append(Column(key, raw, numeric, even.get(key)))
    return made


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _label(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- Layout, colours, axes and escaped text, shared by all figures --------------------------------


Values = npt.NDArray[Any]

COLOURS: Final = {name: outcome.colour for name, outcome in OUTCOMES.items()}
BEST: Final = "#d1495b"
SCALE: Final = "Viridis"
GL_FROM: Final = 3000
"""Points from which on a figure is drawn by WebGL, which stays smooth; below it as SVG, which prints sharper."""
_AXIS: Final = {
    "automargin": True,
    "gridcolor": "#e3e8ee",
    "linecolor": "#e3e8ee",
    "ticks": "outside",
    "zeroline": False,
}
_TEMPLATE: Final = {
    "layout": {
        "font": {"color": "#2a3442"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
}
_TEXT: Final = 48
_MOST_TICKS: Final = 8
"""Powers of ten that are marked on an axis."""
_DECADES: Final = 100.0
"""Spread of positive values (a high quantile to a low one) from which on an axis is logarithmic. Of many numbers drawn
evenly from 0 on, it is about 50."""
_LOG_FROM: Final = 30.0
"""Spread from which on an axis may be logarithmic..."""
_LOG_BELOW: Final = 0.25
"""...if half of them lie below this part of the high one: of numbers drawn evenly, half lie below 0.5 of it."""


def text(value: Any, limit: int = _TEXT) -> str:
    """Return a value as text of at most ``limit`` characters, escaped for plotly."""
    words = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return html.escape(words if len(words) <= limit else f"{words[: limit - 3]}...", quote=False)


def figure(title: str, x: str = "", y: str = "", note: str = "") -> go.Figure:
    """Return an empty figure with a title, a smaller line below it, and titles of its axes."""
    return styled(go.Figure(layout={"xaxis_title_text": x, "yaxis_title_text": y}), title, note)


def styled(made: go.Figure, title: str, note: str = "") -> go.Figure:
    """Give a figure the style of all, a title and a smaller line below it; return it."""
    below = f"<br><sup>{note}</sup>" if note else ""
    return made.update_layout(
        template=_TEMPLATE,
        title={"text": f"{title}{below}", "x": 0, "xref": "paper", "y": None, "yanchor": None, "yref": None},
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"},
        margin={"l": 60, "r": 30, "t": 80, "b": 80},
        height=460,
        width=None,
        hovermode="closest",
    )


def nothing(title: str, why: str) -> go.Figure:
    """Return a figure with the reason why there is nothing to draw."""
    made = figure(title)
    made.update_layout(height=220)
    made.update_xaxes(visible=False)
    made.update_yaxes(visible=False)
    made.add_annotation(text=why, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 15})
    return made


def scatter(count: int) -> Any:
    """Return plotly's class of scatter plots for this many points."""
    return go.Scattergl if count >= GL_FROM else go.Scatter


def smooth(made: go.Figure) -> go.Figure:
    """Return a figure of scatter plots as it is, or with many points drawn by WebGL."""
    if scatter(sum(len(trace.x or ()) for trace in made.data)) is go.Scatter:
        return made
    return go.Figure([{**trace.to_plotly_json(), "type": "scattergl"} for trace in made.data], made.layout)


def is_wide(values: Values | Sequence[float]) -> bool:
    """Tell whether values are better seen on a logarithmic axis: all positive, and over two decades or so."""
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found)]
    if len(found) < 2 or found.min() <= 0:
        return False
    low, high = np.quantile(found, 0.02, method="lower"), np.quantile(found, 0.98, method="higher")
    middle = np.median(found)
    return bool(high / low >= _DECADES or (high / low >= _LOG_FROM and middle / high <= _LOG_BELOW))


def axis_of(values: Values | Sequence[float]) -> dict[str, Any]:
    """Return what an axis of plotly needs that fits the values: its type, and how a logarithmic one is marked."""
    if not is_wide(values):
        return {"type": "linear"}
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found)]
    decades = math.log10(found.max() / found.min())
    marks = {"dtick": math.ceil(decades / _MOST_TICKS)} if decades >= 2 else {}
    return {"type": "log", "exponentformat": "power", **marks}


# --- Studies of Optuna in memory, of which it draws a figure or computes importances --------------


@contextmanager
def study_of(
    values: Values, mode: str, params: Mapping[str, Sequence[Any]], *, log: Sequence[str] = ()
) -> Iterator[Study]:
    """Yield a study of completed trials, and keep Optuna and its warnings quiet meanwhile.

    Args:
        values: of each trial, finite.
        mode: "min" or "max".
        params: of each trial by name, numbers or text; MISSING where a trial lacks one. Optuna takes the range of
            numbers, and the different texts, as what was searched.
        log: the names that were searched on a logarithmic scale.
    """
    import optuna  # a second that only these figures need
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    searched: dict[str, BaseDistribution] = {}
    for name, column in params.items():
        present = [value for value in column if value is not MISSING]
        if isinstance(present[0], str):
            searched[name] = CategoricalDistribution(tuple(sorted(set(present))))
        else:
            searched[name] = FloatDistribution(min(present), max(present), log=name in log)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
        rows = [{name: column[row] for name, column in params.items()} for row in range(len(values))]
        study.add_trials(
            optuna.trial.create_trial(
                params={name: value for name, value in row.items() if value is not MISSING},
                distributions={name: searched[name] for name, value in row.items() if value is not MISSING},
                value=float(value),
            )
            for row, value in zip(rows, values, strict=True)
        )
        yield study
