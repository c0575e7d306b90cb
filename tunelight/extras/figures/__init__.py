"""Figures of a sweep: functions from results to a plotly ``Figure``. Importing this imports plotly.

>>> from tunelight.extras.figures import FIGURES, history
>>> history(results).show()                                     # doctest: +SKIP
>>> tunelight.reporting.write_image(history(results), "a.png")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from tunelight.errors import SettingsError, first_of, unknown
from tunelight.extras.figures.data import (
    BEST,
    COLOURS,
    MISSING,
    SCALE,
    Column,
    Values,
    axis_of,
    chosen_metric,
    columns,
    failed_in,
    figure,
    is_wide,
    nothing,
    rung_names,
    same_epoch,
    scatter,
    smooth,
    study_of,
    styled,
    text,
    values_of,
)
from tunelight.record import ranked, read_sweep_file
from tunelight.record.view import finite, progress
from tunelight.results.trial import counted, ordinal

if TYPE_CHECKING:
    from tunelight.results import SweepResults, TrialResult


__all__ = [
    "FIGURES",
    "history",
    "importances",
    "learning_curves",
    "slices",
]

# --- Figures over time: the best value so far, and every trial's learning curve ---------------------------

_MOST_POINTS: Final = 60_000
"""Of all curves together; above it, they are thinned out evenly, except for first, best and last points."""


def history(results: SweepResults, metric: str | None = None, mode: str | None = None) -> go.Figure:
    """Draw each trial's best value, in order of creation, and the best of the sweep so far.

    Args:
        metric, mode: which; by default the sweep's. Raises: MetricError for a metric that nobody reported.
    """
    metric, mode = chosen_metric(results, metric), mode or results.mode
    values = values_of(results, metric, mode)
    finite = np.isfinite(values)
    title = f"Optimization history: best {text(metric)} of each trial ({mode} is better)"
    if not finite.any():
        return nothing(title, f"No trial has reported a number as {text(metric)} yet.")
    without = len(values) - int(finite.sum())
    note = f"without {without} of {counted(len(values), 'trial')}, which reported no number" if without else ""
    made = figure(title, "trial, in order of creation", text(metric), note)
    made.update_yaxes(**axis_of(values[finite]))
    kind = scatter(len(values))
    index = np.array([trial.index for trial in results.trials], dtype=np.int32)
    state = np.array([trial.state for trial in results.trials])
    for name in dict.fromkeys(state[finite]):
        shown = finite & (state == name)
        made.add_trace(
            kind(
                x=index[shown],
                y=values[shown],
                customdata=index[shown],
                mode="markers",
                name=f"{str(name).lower()}: {counted(int(shown.sum()), 'trial')}",
                marker={"color": COLOURS.get(str(name), "#888888"), "size": 7},
                hovertemplate=f"trial %{{x}}: %{{y:.5g}}<extra>{str(name).lower()}</extra>",
            )
        )
    worst = -math.inf if mode == "max" else math.inf
    filled = np.where(finite & ~failed_in(results), values, worst)
    best = np.maximum.accumulate(filled) if mode == "max" else np.minimum.accumulate(filled)
    known = np.isfinite(best)
    line = {"color": BEST, "width": 2, "shape": "hv"}
    made.add_trace(
        go.Scatter(x=index[known], y=best[known], mode="lines", name="best so far", line=line, hoverinfo="skip")
    )
    return made


def learning_curves(results: SweepResults, metric: str | None = None, mode: str | None = None) -> go.Figure:
    """Draw every trial's reports, coloured by the number of rungs that it reached, or by its state without rungs.

    Args:
        metric, mode: which; by default the sweep's. Raises: MetricError for a metric that nobody reported.
    """
    metric, mode = chosen_metric(results, metric), mode or results.mode
    curves = [(trial, *_curve(trial, metric)) for trial in results.trials]
    curves = [(trial, x, y) for trial, x, y in curves if np.isfinite(y).any()]
    title = f"Learning curves: {text(metric)} at each report"
    if not curves:
        return nothing(title, f"No trial has reported a number as {text(metric)} yet.")
    points = sum(len(y) for _, _, y in curves)
    step = math.ceil(points / _MOST_POINTS)
    note = f"every {ordinal(step)} of {points:,} reports, and each trial's best and last" if step > 1 else ""
    epochs = all(isinstance(report.get("epoch"), int) for trial, _, _ in curves for report in trial.history[:1])
    made = figure(title, "epoch" if epochs else "report", text(metric), note)
    made.update_yaxes(**axis_of(np.concatenate([y for _, _, y in curves])))
    kind = scatter(points)
    for name, colour, members in _groups(results, [trial for trial, _, _ in curves]):
        shown = [(*_thinned(x, y, step, mode), trial.index) for trial, x, y in curves if trial.id in members]
        made.add_trace(
            kind(
                x=np.concatenate([part for x, _, _ in shown for part in (x, x[-1:])]),
                y=np.concatenate([part for _, y, _ in shown for part in (y, [math.nan])]).astype(np.float32),
                customdata=np.repeat([index for *_, index in shown], [len(x) + 1 for x, _, _ in shown]).astype(
                    np.int32
                ),
                mode="lines+markers" if points < 400 else "lines",
                name=f"{name}: {counted(len(shown), 'trial')}",
                line={"color": colour, "width": 1.4},
                marker={"size": 4},
                hovertemplate="trial %{customdata}, %{x}: %{y:.5g}<extra></extra>",
            )
        )
    values = np.where(failed_in(results), math.nan, values_of(results, metric, mode))
    if np.isfinite(values).any():
        winner = results.trials[int(np.nanargmax(values) if mode == "max" else np.nanargmin(values))]
        if (metric, mode) == (results.metric, results.mode):
            best = next(iter(ranked(results.record)), winner.id)
            first = results.record.trials[best].repeats or best
            winner = next(trial for trial in results.trials if trial.id == first)
        x, y = _curve(winner, metric)
        made.add_trace(
            kind(
                x=x,
                y=y,
                customdata=np.full(len(x), winner.index, dtype=np.int32),
                mode="lines+markers" if len(x) == 1 else "lines",
                name=f"best: trial {winner.index}",
                line={"color": BEST, "width": 3},
                hoverinfo="skip",
            )
        )
    return made


def _curve(trial: TrialResult, metric: str) -> tuple[Values, Values]:
    x = np.array([progress(report) for report in trial.history], dtype=np.int32)
    return x, np.array([finite(report, metric) for report in trial.history], dtype=float)


def _thinned(x: Values, y: Values, step: int, mode: str) -> tuple[Values, Values]:
    """Keep every ``step``-th point, the first, the best and the last."""
    if step == 1:
        return x, y
    best = int(np.nanargmax(y) if mode == "max" else np.nanargmin(y))
    kept = np.unique([*range(0, len(x), step), best, len(x) - 1])
    return x[kept], y[kept]


def _groups(results: SweepResults, trials: list[TrialResult]) -> Iterator[tuple[str, str, set[str]]]:
    """Yield (name, colour, trial ids): by rungs, else by states."""
    rungs = rung_names(results)
    done = {trial.id: far for trial in trials if (far := results.record.trials[trial.id].done) is not None}
    if rungs and len(done) == len(trials):
        numbers = {key: sum(far >= rung for rung in results.record.sweep["rungs"]["at"]) for key, far in done.items()}
        for number in sorted(set(numbers.values())):
            colour = sample_colorscale(SCALE, [0.92 * number / len(rungs)])[0]
            name = f"highest rung reached: {rungs[number - 1].removeprefix('rung ')}" if number else "reached no rung"
            yield name, colour, {key for key, found in numbers.items() if found == number}
        return
    for state in dict.fromkeys(trial.state for trial in trials):
        yield state.lower(), COLOURS.get(state, "#888888"), {trial.id for trial in trials if trial.state == state}


# --- Figures of how results depend on hyperparameters. Optuna draws the slices ----------------------------

_MOST_SLICES: Final = 12
_MOST_SLICED: Final = 1000
"""Trials in slices."""
_ROW: Final = 4
_NAMES: Final = {"fanova": "fANOVA", "pedanova": "PED-ANOVA"}


@dataclass(frozen=True)
class _Judged:
    """The trials that have a finite value, with the keys in which they differ."""

    metric: str
    mode: str
    whole: int
    """How many trials the sweep has."""
    index: Values
    values: Values
    columns: list[Column]
    said: str
    """Which value is a trial's."""

    def some(self, at: Values) -> _Judged:
        """Return some of the trials, by their positions or as booleans."""
        few = [column.some(at) for column in self.columns]
        return replace(self, index=self.index[at], values=self.values[at], columns=few)

    def at_most(self, count: int) -> _Judged:
        """Return so many of the trials, evenly by rank, the best and the worst among them; all if they are no more."""
        if len(self.values) <= count:
            return self
        places = np.linspace(0, len(self.values) - 1, count).astype(int)
        return self.some(np.sort(np.argsort(self.values, kind="stable")[places]))

    @property
    def missing(self) -> str:
        """The reason why there is nothing to compare; empty if there is something."""
        if len(self.values) == 0:
            return f"No trial has reported a number as {text(self.metric)} yet."
        if len(self.values) == 1:
            return "Only one trial has a value yet: there is nothing to compare it with."
        return "" if self.columns else "All trials have the same configuration."


def _judge(results: SweepResults, metric: str | None, *, at_same_epoch: bool = False) -> _Judged:
    metric, mode = chosen_metric(results, metric), results.mode
    epoch, values = same_epoch(results, metric, mode) if at_same_epoch else (0, values_of(results, metric, mode))
    finite = np.isfinite(values)
    trials = [trial for trial, has_value in zip(results.trials, finite, strict=True) if has_value]
    index = np.array([trial.index for trial in trials], dtype=np.int32)
    space = read_sweep_file(results.folder).get("space")
    varied = columns(trials, space if isinstance(space, Mapping) else None)
    epochs = all(isinstance(report.get("epoch"), int) for trial in trials for report in trial.history[-1:])
    basis = f"by their best {text(metric, 24)}" + (f" up to {'epoch' if epochs else 'report'} {epoch}" if epoch else "")
    return _Judged(metric, mode, len(finite), index, values[finite], varied, basis)


def _names(column: Column) -> dict[str, str]:
    """Return a short text for each different value that is text: escaped, and no other's."""
    names: dict[str, str] = {}
    for value in sorted({value for value in column.values if isinstance(value, str)}):
        name = text(value, 24)
        names[value] = f"{name} ({len(names)})" if name in names.values() else name
    return names


def _note(judged: _Judged, most: int, *hints: str) -> str:
    """Return what a figure says below its title: hints, and the trials and keys that it leaves out."""
    count, more = len(judged.values), len(judged.columns) - most
    lacking = {column.key: count - sum(column.there) for column in judged.columns[:most]}
    keys = [f"{text(key, 24)} in {number} of {counted(count, 'trial')}" for key, number in lacking.items() if number]
    without = f"without {judged.whole - count} of {counted(judged.whole, 'trial')}, which reported no number"
    parts = [
        *hints,
        f"not set: {first_of(keys)}" if keys else "",
        without if count < judged.whole else "",
        f"{more} more keys are left out" if more > 0 else "",
    ]
    return "; ".join(filter(None, parts))


def slices(results: SweepResults, metric: str | None = None) -> go.Figure:
    """Draw each trial's best value over the value of each key that it has. Raises: MetricError."""
    whole = _judge(results, metric)
    judged, count = whole.at_most(_MOST_SLICED), len(whole.values)
    title = f"Slices: best {text(judged.metric)} over each key by itself"
    if judged.missing:
        return nothing(title, judged.missing)
    from optuna.visualization import plot_slice  # a second that only this figure needs

    shown = judged.columns[:_MOST_SLICES]
    thinned = f"{_MOST_SLICED:,} of {count:,} trials, evenly by rank" if count > _MOST_SLICED else ""
    escaped = {column.key: list(map(_names(column).get, column.values, column.values)) for column in shown}
    log = [column.key for column in shown if column.log]
    with study_of(judged.values, judged.mode, escaped, log=log) as study:
        made = smooth(plot_slice(study, target_name=text(judged.metric, 30)))
    styled(made, title, _note(whole, _MOST_SLICES, "the later a trial, the brighter", thinned))
    wide = min(_ROW, len(shown))
    rows = -(-len(shown) // wide)
    axes = zip(shown, made.data, made.select_xaxes(), made.select_yaxes(), strict=True)
    for place, (column, trace, x, y) in enumerate(axes):
        numbers = list(trace.marker.color)
        index = judged.index[numbers]
        trace.update(customdata=index, hovertemplate="trial %{customdata}: %{x}, %{y:.5g}<extra></extra>")
        trace.marker = {"size": 6, "color": index, "colorscale": SCALE, "opacity": 0.8}
        row, left = divmod(place, wide)
        x.update(domain=[(left + 0.04) / wide, (left + 0.96) / wide], title={"text": text(column.key, 30)})
        y.update(domain=[1 - (row + 0.7) / rows, 1 - row / rows], showticklabels=not left, **axis_of(judged.values))
        y.title.text = "" if left else text(judged.metric, 30)
        if column.numeric:  # marked is each power of ten, each of a few numbers, or what plotly chooses
            marks = np.unique([value for value in column.values if value is not MISSING])
            few = {"tickvals": marks.tolist()} if len(marks) <= 5 else {"nticks": 6}
            tens = column.log and marks[-1] >= 10 * marks[0]
            x.update({"dtick": 1, "exponentformat": "power"} if tens else few)
        else:  # Optuna 5 puts the names in quotation marks
            names = _names(column)
            trace.x, x.categoryarray = [names[column.values[number]] for number in numbers], list(names.values())
    return made.update_layout(height=170 + 250 * rows, margin={"t": 100, "b": 50}, showlegend=False)


def importances(results: SweepResults, metric: str | None = None, evaluator: Evaluator = "fanova") -> go.Figure:
    """Draw how much of the differences between trials each key explains, by Optuna.

    Trials are compared at the same epoch: by their best value up to the last one that most of them came to. The figure
    says which that is, and how many trials it rests on: a thousand of them at most, evenly by rank.

    Args:
        metric: by default the sweep's. Raises: MetricError for one that nobody reported.
        evaluator: "fanova" (fANOVA, Hutter et al. 2014: shares of the variance; needs scikit-learn) or "pedanova"
            (PED-ANOVA, Watanabe et al. 2023: what sets the best tenth apart, which is another question).
    """
    judged = _judge(results, metric, at_same_epoch=True).at_most(MOST)
    weights, why = importances_of(judged.columns, judged.values, judged.mode, evaluator)
    title = f"Importances for {text(judged.metric)}, by {_NAMES[evaluator]}"
    if judged.missing or why:
        return nothing(title, judged.missing or why)
    weights.sort(key=lambda weight: -weight.value)
    note = f"{len(judged.values)} of {counted(judged.whole, 'trial')}, {judged.said}"
    if len(judged.values) < ROUGH:
        note += f"; rough: with fewer than {ROUGH} trials, chance has its share"
    marks = ["*" if weight.trials < len(judged.values) else "" for weight in weights]
    if any(marks):
        note += "; * judged among the trials that have the key"
    made = figure(title, "importance", "", note)
    made.add_trace(
        go.Bar(
            x=[weight.value for weight in weights],
            y=[f"{text(weight.key)}{mark}" for weight, mark in zip(weights, marks, strict=True)],
            text=[f"{weight.value:.2f}" for weight in weights],
            hovertext=[f"{weight.value:.3f}, of {weight.trials} trials" for weight in weights],
            orientation="h",
            marker={"color": "#6c8ebf"},
            hovertemplate="%{y}: %{hovertext}<extra></extra>",
        )
    )
    made.update_xaxes(range=[0, max(1.05, 1.05 * weights[0].value)])
    made.update_yaxes(autorange="reversed")
    return made.update_layout(height=160 + 30 * len(weights))


# --- The importance of hyperparameters, by Optuna's evaluators on a study that is built from the record ---


Evaluator = Literal["fanova", "pedanova"]
ROUGH: Final = 100
"""Trials below which importances can be far off with any evaluator (docs/decisions/0009)."""
MOST: Final = 1000
"""The most trials that are evaluated; of more, so many give the same result, in seconds."""
_TREES: Final = 64
_DEPTH: Final = 5
"""Of fANOVA's trees. Unlimited depth, Optuna's default, fits noise, and takes minutes for 1,000 trials."""
_FEW: Final = 8
_LEAST: Final = 4
"""Trials below which there are no importances."""


@dataclass(frozen=True)
class Importance:
    """The importance of a key, by the ``trials`` whose configuration has it."""

    key: str
    value: float
    trials: int


def importances_of(
    columns: Sequence[Column], values: Values, mode: str, evaluator: str
) -> tuple[list[Importance], str]:
    """Return each key's importance, and why there are none.

    Keys that every configuration has are evaluated together. A conditional key is evaluated with them on the trials
    that have it. Raises: SettingsError for an unknown evaluator.
    """
    if evaluator not in _NAMES:
        raise SettingsError(unknown("There is no evaluator", evaluator, _NAMES))
    if evaluator == "fanova" and importlib.util.find_spec("sklearn") is None:
        return [], "fANOVA needs scikit-learn, which is not installed: pip install scikit-learn."
    if len(values) < _LEAST:
        return [], f"Importances need {_LEAST} trials with a value; there are {len(values)}."
    if float(np.ptp(values)) == 0:
        return [], "All trials have the same value: no key explains a difference."
    shared = [column for column in columns if column.there.all()]
    found = [Importance(key, value, len(values)) for key, value in evaluate(shared, values, mode, evaluator).items()]
    for column in columns:
        has_key = column.there
        count = int(has_key.sum())
        if has_key.all() or count < _LEAST or not column.differs or float(np.ptp(values[has_key])) == 0:
            continue
        part = [reduced for reduced in (other.some(has_key) for other in [*shared, column]) if reduced.differs]
        value = evaluate(part, values[has_key], mode, evaluator).get(column.key)
        if value is not None:
            found.append(Importance(column.key, value, count))
    return found, "" if found else "Too few trials have the keys that differ."


def evaluate(columns: Sequence[Column], values: Values, mode: str, evaluator: str) -> dict[str, float]:
    """Return each key's importance, by one of Optuna's evaluators; every trial must have every key."""
    if not columns:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    # Optuna expects `params` in this order.
    params = {column.key: _suggested(column) for column in sorted(columns, key=lambda column: column.key)}
    with study_of(values, mode, params) as study:
        judge: Any = PedAnovaImportanceEvaluator()
        if evaluator == "fanova":
            judge = FanovaImportanceEvaluator(n_trees=_TREES, max_depth=_DEPTH, seed=0)
        found = get_param_importances(study, evaluator=judge, params=list(params))
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def _suggested(column: Column) -> list[Any]:
    """Return a column's values for evaluators, which assume them to be uniform in their range.

    Numbers that are far apart are replaced by their logarithm, and a few different ones by their rank.
    """
    if not column.numeric:
        return column.values
    numbers = np.array(column.values)
    different = np.unique(numbers)
    if len(different) <= _FEW:
        return [float(place) for place in np.searchsorted(different, numbers)]
    return [float(number) for number in (np.log10(numbers) if is_wide(numbers) else numbers)]


FIGURES: Final[dict[str, Callable[..., Any]]] = {
    draw.__name__: draw for draw in (history, learning_curves, importances, slices)
}
"""By name, in the order of a report. Each takes the results (``SweepResults``) and returns a ``Figure``; each draws
also a sweep of one trial, or of none that has reported, and then says what is missing."""
