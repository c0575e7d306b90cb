"""A plan as a table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunelight.simulation.planning import Plan

_MOST_OPTIONS = 6


def table(plan: Plan) -> str:
    """Return a plan as text."""
    head = (
        f"{plan.num_samples} trials of up to {plan.max_epochs} epochs, {plan.workers} workers each, under "
        f"{plan.scheduler}, on {plan.cluster} slots: {plan.at_once} at once"
    )
    lines = [head, "", *_wrapped(plan.verdict)]
    if plan.makespan_h is not None:
        lines += ["", *_columns(("", "p50", "p90"), _figures(plan))]
    if plan.stages:
        rows = [(f"{s.epoch}", f"{s.trials}", f"{s.slots}", f"{s.slot_hours:.2f}") for s in plan.stages]
        lines += ["", *_columns(("to epoch", "trials", "slots at most", "slot-hours"), rows)]
    if plan.options:
        lines += ["", *_options(plan)]
    lines += ["", *(line for note in plan.notes for line in _wrapped(f"- {note}"))] if plan.notes else []
    return "\n".join(lines)


def _figures(plan: Plan) -> list[tuple[str, ...]]:
    shown: list[tuple[str, Any, str]] = [
        ("hours", plan.makespan_h, "{:.2f}"),
        ("worker-hours held", plan.worker_hours, "{:.1f}"),
        ("idle slots", plan.idle_share, "{:.0%}"),
        ("idle at the tail", plan.tail_idle_share, "{:.0%}"),
        ("cost of what is held", plan.cost, "{:.2f}"),
        ("cost of the cluster", plan.rent, "{:.2f}"),
    ]
    return [(name, form.format(one.p50), form.format(one.p90)) for name, one, form in shown if one is not None]


def _options(plan: Plan) -> list[str]:
    rows = [
        (
            f"{one.workers}",
            f"{one.nodes}",
            f"{one.slots}",
            f"{one.makespan_h:.2f}",
            "-" if one.cost is None else f"{one.cost:.2f}",
            "yes" if one.in_time else "no",
        )
        for one in plan.options[:_MOST_OPTIONS]
    ]
    return _columns(("workers", "nodes", "slots", "hours", "cost", "in time"), rows)


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def _wrapped(text: str, width: int = 100) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("  " if text.startswith("- ") else "")
        lines[-1] += f"{' ' if lines[-1].strip() else ''}{word}"
    return lines
