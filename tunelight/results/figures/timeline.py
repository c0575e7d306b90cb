"""The timeline: which trial held which worker when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import plotly.graph_objects as go

from tunelight.record import ERROR, OUTCOMES, PAUSED, RUNNING
from tunelight.results.figures.style import COLOURS, figure, nothing, text
from tunelight.results.words import counted

if TYPE_CHECKING:
    from tunelight.record import SweepState, TrialState
    from tunelight.results.figures.data import Sweep

_KINDS: Final = {
    "cold": ("starting, cold: workers come and import", "#d98e4a"),
    "warm": ("starting, warm", "#e9c46a"),
    "train": ("training", "#6c8ebf"),
    "lost": ("training that ended in an error", COLOURS[ERROR]),
}
_FAULTS: Final = frozenset(name for name, outcome in OUTCOMES.items() if outcome.raised)
_MOST_ROWS: Final = 60
"""Rows up to which each is labelled."""
_MOST_BARS: Final = 40_000
"""Of all kinds together; above it, a row stands for several workers."""


@dataclass(frozen=True)
class Hold:
    """Workers of one node that a trial held, from ``start`` to ``end`` (seconds since the epoch), by what they did."""

    trial: int
    node: str
    workers: int
    start: float
    end: float
    kind: str
    warm: bool


def holds_of(state: SweepState) -> list[Hold]:
    """Return which trials held workers when, in order of time."""
    end, found = state.updated or 0.0, []
    for trial in state.trials.values():
        for start, stop, last in _runs(trial, end):
            found += _held(trial, start, stop, last, int(state.sweep.get("workers") or 1))
    return sorted(found, key=lambda hold: (hold.start, hold.trial))


def _runs(trial: TrialState, now: float) -> Iterable[tuple[float, float, str]]:
    """Yield (start, end, next state) of each time that a trial was RUNNING."""
    moves = [*trial.moves, (now, RUNNING)]
    for (at, name), (then, after) in pairwise(moves):
        if name == RUNNING and then > at:
            yield at, then, after


def _held(trial: TrialState, start: float, stop: float, after: str, workers: int) -> list[Hold]:
    """Return what a trial held while it was RUNNING: each of its gangs, first starting, then training."""
    gangs = [gang for gang in trial.gangs if start - 1 <= gang["began"] <= stop]  # a second: a head's clock may differ
    if not gangs:
        unknown = {"nodes": ["cluster"] * (trial.workers or workers), "warm": True}
        before = [gang for gang in trial.gangs if gang["began"] < start]
        return _split(trial.index, before[-1] if before else unknown, start, stop, _ending(after))
    found = []
    for number, gang in enumerate(gangs):
        begin = start if number == 0 else min(max(gang["ready"], start), stop)
        end = stop if number == len(gangs) - 1 else min(max(gangs[number + 1]["ready"], begin), stop)
        ready = min(max(gang["ready"], begin), end)
        found += _split(trial.index, gang, begin, ready, "warm" if gang["warm"] else "cold")
        found += _split(trial.index, gang, ready, end, _ending(after) if end == stop else "train")
    return found


def _ending(after: str) -> str:
    return "lost" if after in _FAULTS else "train"


def _split(trial: int, gang: Mapping[str, Any], start: float, end: float, kind: str) -> list[Hold]:
    if end <= start:
        return []
    nodes: Sequence[str] = gang["nodes"]
    counts = {node: nodes.count(node) for node in dict.fromkeys(nodes)}
    return [Hold(trial, node, count, start, end, kind, bool(gang["warm"])) for node, count in counts.items()]


def rows_of(holds: Sequence[Hold]) -> list[tuple[Hold, int]]:
    """Return each hold with a row for each of its workers, counted per node: the lowest free ones.

    Holds of a trial that follow each other keep their rows. O(n log n).
    """
    free: dict[str, list[int]] = {}
    made: dict[str, int] = {}
    busy: list[tuple[float, int, Hold, list[int]]] = []
    rows: list[tuple[Hold, int]] = []
    for number, hold in enumerate(holds):
        kept: list[int] = []
        while busy and busy[0][0] <= hold.start:
            _, _, over, taken = heappop(busy)
            if (over.trial, over.node, over.end) == (hold.trial, hold.node, hold.start):
                kept, taken = taken[: hold.workers], taken[hold.workers :]
            for row in taken:
                heappush(free.setdefault(over.node, []), row)
        spare = free.setdefault(hold.node, [])
        while len(kept) < hold.workers:
            if spare:
                kept.append(heappop(spare))
            else:
                kept.append(made.get(hold.node, 0))
                made[hold.node] = made.get(hold.node, 0) + 1
        heappush(busy, (hold.end, number, hold, kept))
        rows += [(hold, row) for row in kept]
    return rows


def timeline(results: Sweep) -> go.Figure:
    """Draw which trial held which worker when: cold and warm starts, training, pauses and faults.

    A row is a worker of a node; which ones a gang has is not recorded, so the lowest free ones are shown. In very large
    sweeps a row stands for several workers. In records without nodes, all are on one.
    """
    state = results.record
    title = "Timeline: who held which worker"
    holds = holds_of(state)
    if not holds:
        return nothing(title, "No trial has run yet.")
    begin = min(hold.start for hold in holds)
    unit, seconds = unit_of(max(hold.end for hold in holds) - begin)
    each = math.ceil(sum(hold.workers for hold in holds) / _MOST_BARS)
    placed = rows_of([replace(hold, workers=math.ceil(hold.workers / each)) for hold in holds])
    names = _names([hold.node for hold in holds])
    lanes = {lane: number for number, lane in enumerate(sorted({(hold.node, row) for hold, row in placed}))}
    made = figure(title, f"{unit} since the sweep began", "", _starts(state, each))
    width = max(2.0, min(14.0, 420 / max(len(lanes), 1)))
    for kind, (label, colour) in _KINDS.items():
        drawn = [(hold, lanes[hold.node, row]) for hold, row in placed if hold.kind == kind]
        if drawn:
            made.add_trace(_bars(drawn, label, colour=colour, width=width, begin=begin, seconds=seconds))
    for trace in _marks(state, placed, lanes, begin, seconds):
        made.add_trace(trace)
    step = -(-len(lanes) // _MOST_ROWS)
    ticks = [(f"{names[node]} {row}", number) for (node, row), number in lanes.items() if number % step == 0]
    made.update_yaxes(
        tickvals=[number for _, number in ticks],
        ticktext=[name for name, _ in ticks],
        range=[len(lanes) - 0.4, -0.6],
        zeroline=False,
    )
    made.update_layout(showlegend=True, height=max(300, min(900, 220 + 22 * len(lanes))))
    return made


def _bars(
    drawn: Sequence[tuple[Hold, int]], label: str, *, colour: str, width: float, begin: float, seconds: float
) -> go.Scatter:
    """Return all bars of one kind as one line with gaps: thousands stay one path."""
    spans = np.array([(hold.start, (hold.start + hold.end) / 2, hold.end, math.nan) for hold, _ in drawn])
    return go.Scatter(
        x=((spans.ravel() - begin) / seconds).astype(np.float32),
        y=np.repeat([lane for _, lane in drawn], 4).astype(np.int32),
        customdata=np.repeat([hold.trial for hold, _ in drawn], 4).astype(np.int32),
        mode="lines",
        name=label,
        line={"color": colour, "width": width},
        hovertemplate="trial %{customdata}<extra>" + label.partition(":")[0] + "</extra>",
    )


def _marks(
    state: SweepState,
    placed: Sequence[tuple[Hold, int]],
    lanes: Mapping[tuple[str, int], int],
    begin: float,
    unit: float,
) -> list[go.Scatter]:
    """Return pauses and faults, each on the first worker that its trial had at the time."""
    first: dict[int, list[tuple[float, int]]] = {}
    for hold, row in placed:
        first.setdefault(hold.trial, []).append((hold.start, lanes[hold.node, row]))
    found: dict[str, list[tuple[float, int, int, str]]] = {"pause": [], "fault": []}
    for trial in state.trials.values():
        where = first.get(trial.index)
        if where is None:
            continue
        marks = [(at, "pause", "paused") for at, name in trial.moves if name == PAUSED]
        marks += [(at, "fault", text(said, 90)) for at, said in trial.notes if said.startswith("failed")]
        message = (trial.error or {}).get("message", "")
        marks += [(at, "fault", text(f"{name}: {message}", 90)) for at, name in trial.moves if name in _FAULTS]
        for at, kind, said in marks:
            lane = next((lane for start, lane in reversed(where) if start <= at), where[0][1])
            found[kind].append(((at - begin) / unit, lane, trial.index, f"trial {trial.index}: {said}"))
    looks = {"pause": ("line-ns-open", "#8a8a8a", 12), "fault": ("x", COLOURS[ERROR], 10)}
    return [
        go.Scatter(
            x=[x for x, *_ in marks],
            y=[y for _, y, *_ in marks],
            customdata=[index for *_, index, _ in marks],
            text=[said for *_, said in marks],
            mode="markers",
            name=f"{kind}s: {len(marks)}",
            marker={"symbol": looks[kind][0], "color": looks[kind][1], "size": looks[kind][2], "line": {"width": 2}},
            hovertemplate="%{text}<extra></extra>",
        )
        for kind, marks in found.items()
        if marks
    ]


def _starts(state: SweepState, each: int) -> str:
    """Return how often gangs started warm and cold, the mean time of cold starts, and how many workers a row has."""
    gangs = [
        gang for trial in state.trials.values() for gang in trial.gangs if gang["ready"] > gang["began"] or gang["warm"]
    ]
    cold = [gang["ready"] - gang["began"] for gang in gangs if not gang["warm"]]
    row = f"; a row is {each} workers" if each > 1 else ""
    if not gangs:
        return row.removeprefix("; ")
    mean = f", {sum(cold) / len(cold):.1f} s each on average" if cold else ""
    return f"{counted(len(gangs), 'start')}: {len(gangs) - len(cold)} warm, {len(cold)} cold{mean}{row}"


def _names(nodes: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique name of each node: the host's, if only one node is on it."""
    known = set(nodes)
    hosts = [node.partition("#")[0] for node in known]
    return {node: text(node if hosts.count(host := node.partition("#")[0]) > 1 else host, 24) for node in known}


def unit_of(seconds: float) -> tuple[str, float]:
    """Return the unit in which an axis shows so many seconds, and its length in seconds."""
    return ("hours", 3600.0) if seconds > 10_800 else ("minutes", 60.0) if seconds > 300 else ("seconds", 1.0)
