"""The table of trials in the live view: which trials, and the columns for which there is room."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from tunelight.record import PAUSED, SweepState, TrialState, view, winner
from tunelight.reporting.words import STYLES, compact, elapsed, last_value, short_id

MOST_ENDED: Final = 10
"""How many ended trials the table has at most: the best ones."""
_SAMPLE: Final = 200
"""How many of the latest trials are looked at to see which hyperparameters vary."""
_EDGE: Final = 3
"""What a column takes beside its text."""
_BEST: Final = " *"


@dataclass(frozen=True)
class Column:
    """A column: its heading, and a trial's text in it."""

    name: str
    text: Callable[[TrialState], str]
    right: bool = True

    def width(self, shown: Iterable[TrialState]) -> int:
        """Return how many characters of a line it takes."""
        return max([len(self.name), *(len(self.text(trial)) for trial in shown)]) + _EDGE


def rows_of(state: SweepState, rows: int) -> list[TrialState]:
    """Return the trials to show in ``rows`` rows: running ones, then paused ones, then the best that have ended.

    Where not all can be shown, running trials have at least half of the rows.
    """
    live = sorted(state.live.values(), key=lambda trial: trial.state == PAUSED)
    over = [trial for trial in list(state.trials.values()) if trial.id not in state.live and trial.moves]
    best = min(MOST_ENDED, len(over), max(rows - len(live), rows // 2))
    return [*live[: rows - best], *heapq.nsmallest(best, over, key=lambda trial: _rank(state, trial))]


def _rank(state: SweepState, trial: TrialState) -> tuple[bool, bool, float, int]:
    """Return by what trials are sorted, the best first; failed ones, and those without a value, come last."""
    value = trial.value or 0.0
    return trial.failed, trial.value is None, -value if state.mode == "max" else value, trial.index


def make_table(
    state: SweepState, shown: Sequence[TrialState], now: float, width: int = 100, columns: Sequence[str] | None = None
) -> Table:
    """Return a table of trials, with as many columns as fit into ``width`` characters.

    ``columns`` names those that follow the trial and its state: ``workers``, ``epoch`` or ``report``, ``best``,
    ``time``, ``GPU`` (how busy its GPUs are), metrics and hyperparameters. Otherwise they are chosen: the
    hyperparameters that vary most come first.
    """
    table = Table()
    best = found.trial if (found := winner(state)) else None
    chosen = _chosen(state, shown, now, width, columns)
    for column in chosen:
        table.add_column(Text(column.name), justify="right" if column.right else "left", no_wrap=True)
    for trial in shown:
        cells = [Text(column.text(trial)) for column in chosen]
        cells[1].stylize(STYLES.get(view.state_of(trial), ""))
        table.add_row(*cells, style="bold" if trial.id == best else "")
    return table


def _chosen(
    state: SweepState, shown: Sequence[TrialState], now: float, width: int, wanted: Sequence[str] | None
) -> list[Column]:
    """Return the columns for which there is room, in the order in which they are shown."""
    best = found.trial if (found := winner(state)) else None
    rows = {trial.id: view.row(state, trial, now) for trial in shown}
    seen = view.Seen([*list(state.trials.values())[-_SAMPLE:], *shown])
    metric, count = view.metric_of(state), view.unit(shown)

    def column(name: str, *path: str, show: Callable[[Any], str] = compact) -> Column:
        found = view.Column(name, path)
        return Column(name, lambda trial: show(found.of(rows[trial.id])))

    trial = Column("trial", lambda trial: short_id(trial.id) + (_BEST if trial.id == best else ""), right=False)
    known = {
        "state": Column("state", view.state_of, right=False),
        "workers": column("workers", "workers"),
        count: column(count, "at"),
        metric: column(metric, "last"),
        **{name: _metric(name) for name in state.further},
        "best": column("best", "value"),
        "time": column("time", "seconds", show=elapsed),
    }
    params = {key: column(name, "config", key) for key, name in _short_names(seen.by_variety).items()}
    if wanted is not None:
        named = {param.name: param for param in params.values()} | params
        order = [known.get(name) or named.get(name) or _metric(name) for name in wanted]
        return _fitting([trial, known["state"], *order], [], shown, width)
    sizes = {trial.workers for trial in shown if trial.workers is not None}
    first, rest = list(params.values())[:2], list(params.values())[2:]
    workers, further = known.pop("workers"), [known[name] for name in state.further]
    optional = [known["best"], *first, *further, *([workers] if len(sizes) > 1 else []), *rest, workers]
    essential = [trial, *(known[name] for name in ("state", count, metric, "time"))]
    fitting = _fitting(essential, optional, shown, width)
    order = [trial, known.pop("state"), workers, *known.values(), *params.values()]
    return [column for column in order if column in fitting]


def _fitting(
    essential: Sequence[Column], optional: Iterable[Column], shown: Sequence[TrialState], width: int
) -> list[Column]:
    """Return the columns that fit beside each other, the important ones first; at least trial and state."""
    left = width - 1
    found = []
    for number, column in enumerate([*essential, *optional]):
        left -= column.width(shown)
        if left < 0 and number >= 2:
            left += column.width(shown)
            continue
        found.append(column)
    return found


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return each key's last part, or the whole key where another one ends in the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)}


def _metric(name: str) -> Column:
    return Column(name, lambda trial: compact(last_value(trial, name)))
