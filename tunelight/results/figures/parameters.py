"""Figures of how results depend on hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tunelight.record import read_sweep_file
from tunelight.results.figures.data import MISSING, Column, check_metric, columns, judged_by, same_epoch, values_of
from tunelight.results.figures.importance import MOST, ROUGH, Evaluator, importances_of, is_there
from tunelight.results.figures.style import (
    SCALE,
    Values,
    axis_of,
    clip_text,
    figure,
    is_wide,
    nothing,
    scatter,
    text,
)
from tunelight.results.words import counted

if TYPE_CHECKING:
    from tunelight.results.figures.sweep import Sweep

MOST_AXES: Final = 14
_MOST_SLICES: Final = 12
_ROW: Final = 4
_MOST_TICKS: Final = 12
_EVALUATORS: Final = {"pedanova": "PED-ANOVA", "fanova": "fANOVA"}


@dataclass(frozen=True)
class _Judged:
    """The trials that have a finite value, with the keys in which they differ."""

    metric: str
    mode: str
    index: Values
    values: Values
    columns: list[Column]
    epoch: int = 0
    """The epoch at which they are compared; 0: each by its best report."""
    epochs: bool = True
    """Whether reports say their epoch; if not, ``epoch`` is the number of a report."""

    def some(self, at: Values) -> _Judged:
        """Return some of the trials, by their positions."""
        few = [replace(column, raw=tuple(column.raw[place] for place in at)) for column in self.columns]
        return replace(self, index=self.index[at], values=self.values[at], columns=few)

    @property
    def missing(self) -> str:
        """The reason why there is nothing to compare; empty if there is something."""
        if len(self.values) == 0:
            return f"No trial has reported a number as {text(self.metric)} yet."
        if len(self.values) == 1:
            return "Only one trial has a value yet: there is nothing to compare it with."
        return "" if self.columns else "All trials have the same configuration."


def _judge(results: Sweep, metric: str | None, *, at_same_epoch: bool = False) -> _Judged:
    first, mode = judged_by(results)
    metric = first if metric is None else check_metric(results, metric)
    epoch, values = same_epoch(results, metric, mode) if at_same_epoch else (0, values_of(results, metric, mode))
    there = np.isfinite(values)
    trials = [trial for trial, found in zip(results.trials, there, strict=True) if found]
    index = np.array([trial.index for trial in trials], dtype=np.int32)
    space = read_sweep_file(results.folder).get("space")
    known = columns(trials, space if isinstance(space, Mapping) else None)
    epochs = all(isinstance(report.get("epoch"), int) for trial in trials for report in trial.history[-1:])
    return _Judged(metric, mode, index, values[there], known, epoch, epochs)


def parallel(results: Sweep, metric: str | None = None) -> go.Figure:
    """Draw each trial as a line through the values of its configuration to its best value.

    A key that a configuration lacks is drawn as "(not set)", below its axis's values. Raises: MetricError.
    """
    judged = _judge(results, metric)
    title = f"Parallel coordinates: configurations and their best {text(judged.metric)}"
    if judged.missing:
        return nothing(title, judged.missing)
    more = len(judged.columns) - MOST_AXES
    note = "drag along an axis to select" + (f"; {more} more keys are left out" if more > 0 else "")
    made = figure(title, note=note)
    target = _axis(clip_text(judged.metric, 24), judged.values, judged.values, log=is_wide(judged.values))
    axes = [_column_axis(column) for column in judged.columns[:MOST_AXES]]
    line = {"color": target["values"], "colorscale": SCALE, "reversescale": judged.mode == "min", "showscale": False}
    made.add_trace(go.Parcoords(dimensions=[*axes, target], line=line, labelangle=-15, customdata=judged.index))
    made.update_layout(height=520, margin={"t": 140, "l": 90, "r": 90, "b": 40})
    return made


def _column_axis(column: Column) -> dict[str, Any]:
    label = clip_text(column.key, 24)
    if column.numeric:
        numbers = column.numbers
        return _axis(label, numbers, numbers[column.there], log=column.log)
    names, ticks = column.labels, list(range(len(column.labels)))
    numbers = np.where(column.there, column.numbers, -1.0)
    if not column.there.all():
        names, ticks = [MISSING, *names], [-1, *ticks]
    step = math.ceil(len(ticks) / (2 * _MOST_TICKS))
    return {
        "label": label,
        "values": numbers.astype(np.float32),
        "tickvals": ticks[::step],
        "ticktext": [clip_text(name, 16) for name in names[::step]],
        "range": [ticks[0] - 0.2, ticks[-1] + 0.2],
    }


def _axis(label: str, numbers: Values, known: Values, *, log: bool) -> dict[str, Any]:
    """Return an axis of numbers, with NaN below them."""
    shown, found = (np.log10(numbers), np.log10(known)) if log else (numbers, known)
    low, high = float(found.min()), float(found.max())
    few = np.unique(found)
    ticks = few if len(few) <= 6 else np.linspace(low, high, 5)
    names = [f"{10**tick if log else tick:.3g}" for tick in ticks]
    span = (high - low) or 1.0
    axis = {"label": label, "range": [low - span * 0.02, high + span * 0.02]}
    if np.isnan(shown).any():
        below = low - span * 0.15
        shown = np.where(np.isnan(shown), below, shown)
        ticks, names = np.array([below, *ticks]), [MISSING, *names]
        axis["range"] = [below - span * 0.02, high + span * 0.02]
    return {**axis, "values": shown.astype(np.float32), "tickvals": ticks.tolist(), "ticktext": names}


def slices(results: Sweep, metric: str | None = None) -> go.Figure:
    """Draw each trial's best value over the value of each key by itself. Raises: MetricError."""
    judged = _judge(results, metric)
    title = f"Slices: best {text(judged.metric)} over each key by itself"
    if judged.missing:
        return nothing(title, judged.missing)
    shown, more = judged.columns[:_MOST_SLICES], len(judged.columns) - _MOST_SLICES
    wide = min(_ROW, len(shown))
    rows = math.ceil(len(shown) / wide)
    made = make_subplots(
        rows=rows,
        cols=wide,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.26 / rows,
        subplot_titles=[text(column.key, 30) for column in shown],
    )
    note = "the later a trial, the brighter" + (f"; {more} more keys are left out" if more > 0 else "")
    base = figure(title, note=note).layout
    made.update_layout(template="plotly_white", title=base.title, margin={"l": 60, "r": 30, "t": 100, "b": 50})
    made.update_layout(height=170 + 250 * rows, showlegend=False, hovermode="closest")
    kind = scatter(len(judged.values) * len(shown))
    for number, column in enumerate(shown):
        place: Any = {"row": number // wide + 1, "col": number % wide + 1}
        there = column.there
        made.add_trace(
            kind(
                x=column.numbers[there] if column.numeric else _words(column),
                y=judged.values[there],
                customdata=judged.index[there],
                mode="markers",
                marker={"size": 6, "color": judged.index[there], "colorscale": SCALE, "opacity": 0.8},
                hovertemplate="trial %{customdata}: %{x}, %{y:.5g}<extra></extra>",
            ),
            **place,
        )
        kind_of_axis = "category" if not column.numeric else "log" if column.log else "linear"
        made.update_xaxes(type=kind_of_axis, **_ticks(column), **place)
        made.update_yaxes(**axis_of(judged.values), **place)
    made.update_yaxes(title={"text": text(judged.metric, 30)}, col=1)
    return made


def _ticks(column: Column) -> dict[str, Any]:
    """Return how a small axis is marked: each power of ten, each of a few numbers, or what plotly finds."""
    if not column.numeric:
        return {}
    known = column.numbers[column.there]
    if column.log and known.max() >= 10 * known.min():
        return {"dtick": 1, "exponentformat": "power"}
    few = np.unique(known)
    return {"tickvals": few.tolist()} if len(few) <= 5 else {"nticks": 6}


def _words(column: Column) -> list[str]:
    names = [text(name, 16) for name in column.labels]
    return [names[int(place)] for place in column.numbers[column.there]]


def importances(results: Sweep, metric: str | None = None, evaluator: Evaluator = "fanova") -> go.Figure:
    """Draw how much of the differences between trials each key explains, by Optuna.

    Trials are compared at the same epoch: by their best value up to the last one that most of them came to. The figure
    says which that is, and how many trials it rests on: a thousand of them at most, drawn at random.

    Args:
        metric: by default the sweep's. Raises: MetricError for one that nobody reported.
        evaluator: "fanova" (fANOVA, Hutter et al. 2014: shares of the variance; needs scikit-learn) or "pedanova"
            (PED-ANOVA, Watanabe et al. 2023: what sets the best tenth apart, which is another question).
    """
    judged = _judge(results, metric, at_same_epoch=True)
    title = f"Importances for {text(judged.metric)}, by {_EVALUATORS.get(evaluator, evaluator)}"
    if judged.missing:
        return nothing(title, judged.missing)
    if not is_there(evaluator):
        return nothing(title, "fANOVA needs scikit-learn, which is not installed: pip install scikit-learn.")
    if len(judged.values) > MOST:
        judged = judged.some(np.sort(np.random.default_rng(0).permutation(len(judged.values))[:MOST]))
    found, why = importances_of(judged.columns, judged.values, judged.mode, evaluator)
    if not found:
        return nothing(title, why)
    made = figure(title, "importance", "", _rests_on(judged, len(results), any(one.partial for one in found)))
    found = sorted(found, key=lambda one: one.value)
    made.add_trace(
        go.Bar(
            x=[one.value for one in found],
            y=[f"{text(one.key)}{'*' if one.partial else ''}" for one in found],
            text=[f"{one.value:.2f}" for one in found],
            customdata=[one.trials for one in found],
            orientation="h",
            marker={"color": "#6c8ebf"},
            hovertemplate="%{y}: %{x:.3f}, of %{customdata} trials<extra></extra>",
        )
    )
    made.update_xaxes(range=[0, max(1.05, 1.05 * max(one.value for one in found))])
    made.update_layout(height=160 + 30 * len(found))
    return made


def _rests_on(judged: _Judged, whole: int, partial: bool) -> str:
    """Return how many trials the importances are computed from, and at which epoch these were compared."""
    count = len(judged.values)
    said = "epoch" if judged.epochs else "report"
    note = f"{count} of {counted(whole, 'trial')}, by their best {text(judged.metric, 24)} up to {said} {judged.epoch}"
    if count < ROUGH:
        note += f"; rough: with fewer than {ROUGH} trials, chance has its share"
    return f"{note}; * judged among the trials that have the key" if partial else note
