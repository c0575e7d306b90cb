"""A plan: what a sweep would take, as figures for a program and as text for a person."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

_MOST_OPTIONS = 6
_WIDTH = 100
_SMALL = 0.05
"""The part of a duration or of worker-hours that does not count as a difference between schedulers."""


@dataclass(frozen=True)
class Spread:
    """A figure over simulations with different seeds: the median and the 90th percentile."""

    p50: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return both of the values, by nearest rank."""
        ordered = sorted(values)
        return cls(*(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.9)))


@dataclass(frozen=True)
class Stage:
    """The stretch between two rungs, in the median simulation: its trials, and the slots that they hold.

    ``epoch``: the rung that ends it; ``trials``: how many reach that; ``slots``: the most that trials in this stage
    held at once; ``slot_hours``: what they held in all.
    """

    epoch: int
    trials: int
    slots: int
    slot_hours: float


@dataclass(frozen=True)
class Option:
    """A way to run the sweep: gangs of ``workers`` on ``nodes`` nodes; its hours, and the cost of renting the nodes."""

    workers: int
    nodes: int
    slots: int
    makespan_h: float
    cost: float | None
    in_time: bool


@dataclass(frozen=True)
class Compared:
    """What the same sweep would take, and find, under a scheduler, as the median and the 90th percentile.

    ``regret``: how much worse its best value is than that of the best trial, had all been trained to their end.
    """

    scheduler: str
    makespan_h: Spread
    worker_hours: Spread
    regret: Spread

    def is_better_than(self, other: Compared) -> bool:
        """Tell whether it takes fewer worker-hours, and finds no worse a trial no later, but for a small part."""
        pairs = zip(astuple(self.regret), astuple(other.regret), strict=True)
        as_good = all(own <= of_other for own, of_other in pairs)
        in_time = self.makespan_h.p50 <= (1 + _SMALL) * other.makespan_h.p50
        return as_good and in_time and self.worker_hours.p50 < (1 - _SMALL) * other.worker_hours.p50


@dataclass(frozen=True)
class Plan:
    """The estimated time and cost of a sweep. Print it, or use :meth:`asdict`.

    ``cost`` is what gangs hold, ``rent`` the whole cluster from the first to the last minute, each at the price of a
    slot's hour; None without a price. ``verdict`` says in words whether it can be done (in time). ``schedulers``: its
    own and others; a note recommends another one that takes less and finds no worse a trial. ``first``: with ``proxy``
    or ``repeats``, the plan of what comes before the last ``stage``; the verdict then is on all.
    """

    scheduler: str
    num_samples: int
    max_epochs: int
    workers: int
    cluster: str
    at_once: int
    feasible: bool
    verdict: str
    makespan_h: Spread | None = None
    worker_hours: Spread | None = None
    idle_share: Spread | None = None
    tail_idle_share: Spread | None = None
    cost: Spread | None = None
    rent: Spread | None = None
    stages: Sequence[Stage] = ()
    options: Sequence[Option] = ()
    schedulers: Sequence[Compared] = ()
    notes: Sequence[str] = ()
    stage: str = ""
    first: Plan | None = None

    def asdict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return _text(self)


def _text(plan: Plan) -> str:
    if plan.first is not None:
        stages = [plan]
        while (before := stages[0].first) is not None:
            stages.insert(0, before)
        alone = (_text(replace(each, first=None, verdict="")) for each in stages)
        shown = [f"Stage {number}, {stages[number - 1].stage}: {text}" for number, text in enumerate(alone, start=1)]
        return "\n\n".join([*shown, *_wrapped(plan.verdict)])
    head = (
        f"{plan.num_samples} trials of up to {plan.max_epochs} epochs, {plan.workers} workers each, under "
        f"{plan.scheduler}, on {plan.cluster} slots: {plan.at_once} at once"
    )
    lines = [head, *(["", *_wrapped(plan.verdict)] if plan.verdict else [])]
    for columns, rows in _tables(plan):
        if rows:
            lines += ["", *_aligned([columns, *rows])]
    if plan.notes:
        lines += ["", *(line for note in plan.notes for line in _wrapped(f"- {note}"))]
    return "\n".join(lines)


def _tables(plan: Plan) -> Iterator[tuple[Sequence[str], list[Sequence[str]]]]:
    """Yield the columns and rows of each table; those without rows are left out."""
    figures: list[tuple[str, Spread | None, Callable[[float], str]]] = [
        ("duration", plan.makespan_h, duration),
        ("worker-hours held", plan.worker_hours, "{:.1f}".format),
        ("idle slots", plan.idle_share, "{:.0%}".format),
        ("idle at the tail", plan.tail_idle_share, "{:.0%}".format),
        ("cost of what is held", plan.cost, "{:.2f}".format),
        ("cost of the cluster", plan.rent, "{:.2f}".format),
    ]
    yield ("", "p50", "p90"), [(name, show(of.p50), show(of.p90)) for name, of, show in figures if of is not None]
    yield (
        ("to epoch", "trials", "slots at most", "slot-hours"),
        [(f"{s.epoch}", f"{s.trials}", f"{s.slots}", f"{s.slot_hours:.2f}") for s in plan.stages],
    )
    options: list[Sequence[str]] = []
    for way in plan.options[:_MOST_OPTIONS]:
        cost = "-" if way.cost is None else f"{way.cost:.2f}"
        sizes = (f"{way.workers}", f"{way.nodes}", f"{way.slots}")
        options.append((*sizes, duration(way.makespan_h), cost, "yes" if way.in_time else "no"))
    yield ("workers", "nodes", "slots", "duration", "cost", "in time"), options
    compared: list[Sequence[str]] = []
    for own in plan.schedulers:
        regrets = (f"{own.regret.p50:.3g}", f"{own.regret.p90:.3g}")
        compared.append((own.scheduler, duration(own.makespan_h.p50), f"{own.worker_hours.p50:.1f}", *regrets))
    yield ("scheduler", "duration", "worker-hours", "regret p50", "p90"), compared


def duration(hours: float) -> str:
    """Return a number of hours in words: ``40 s``, ``11 min`` or ``2.51 h``."""
    if hours * 60 < 1:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.3g} h"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, the first column flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _wrapped(text: str) -> list[str]:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
