"""The sections of a report that show one trial each: its curves, configuration, placement, log, error and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from tunelight.record import metric_value
from tunelight.reporting.drawing import drawing
from tunelight.reporting.markup import cell, pairs, remarks, safe, table
from tunelight.reporting.usage_section import usage_section
from tunelight.reporting.words import compact, elapsed
from tunelight.results.figures.data import judged_by, progress
from tunelight.results.figures.style import is_wide
from tunelight.results.logs import log_end
from tunelight.results.words import counted, ordinal
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.record import TrialState
    from tunelight.results import SweepResults, TrialResult

ERROR_CHARS: Final = 6000
"""Of a traceback: its end."""
_ALL: Final = 100
"""Trials up to which each has a section."""
_BEST: Final = 50
_FAILED: Final = 50
_MOST_POINTS: Final = 200
"""Of a curve; above it, it is thinned out evenly, except for the best and the last point."""
_MOST_CURVES: Final = 3
_MOST_GANGS: Final = 20
_MOST_NOTES: Final = 20
_MOST_CHANGES: Final = 10
_VALUE: Final = 2000
"""Characters of a configuration's value."""
_LOG_LINES: Final = 30
_LOG_BYTES: Final = 4096


def chosen(results: SweepResults) -> tuple[list[TrialResult], str]:
    """Return the trials that have a section, in order, and a sentence that says which, where those are not all."""
    trials = results.every_trial
    if len(trials) <= _ALL:
        return trials, ""
    best = {trial.id for trial in results.top(_BEST)}
    every = [trial.id for trial in trials if trial.failed]
    kept = best | set(every[:_FAILED])
    failed = f"the first {_FAILED} of {len(every)}" if len(every) > _FAILED else f"the {counted(len(every), 'trial')}"
    said = (
        f"Of {counted(len(trials), 'trial')}, the {len(best)} best and {failed} that failed can be opened; "
        "tunelight show SWEEP TRIAL shows the others."
    )
    return [trial for trial in trials if trial.id in kept], said


def trial_sections(results: SweepResults, trials: Sequence[TrialResult]) -> Iterator[str]:
    """Yield a section for each of some trials, which a link to ``#trial-INDEX`` opens.

    The id is that of an element inside the closed part: browsers open it for a link without a script.
    """
    begin = began(results)
    metric, _ = judged_by(results)
    for trial in trials:
        state = results.record.trials[trial.id]
        value = "" if trial.value is None else f", best {metric} {compact(trial.value)}"
        said = f"Trial {trial.index} {standing(trial, state)}{value}"
        yield f'<details class="trial"><summary>{safe(said)}</summary><div id="trial-{trial.index}">'
        for name, mode in list(results.objectives)[:_MOST_CURVES]:
            yield curve(trial, name, mode)
        yield from trial_parts(trial, state, begin)
        if log := log_end(trial.path, _LOG_LINES, _LOG_BYTES):
            yield f"<h4>The end of its log</h4><pre>{safe(log)}</pre>"
        yield '<p><a href="#trials">Back to the table</a></p></div></details>'


def trial_parts(
    trial: TrialResult, state: TrialState, begin: float, best: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Yield what is known of a trial but its curves and its log.

    Args:
        trial: the trial.
        state: what the record has of it.
        begin: when the sweep began, in seconds since the epoch.
        best: the configuration of the best trial, its keys dotted, to be shown beside where it differs.
    """
    config = flatten(trial.plain_config)
    yield f'<div class="pair">{pairs("configuration", config.items(), _VALUE)}'
    yield pairs("trial", _facts(trial, state))
    if best is not None:
        other = [(key, best.get(key, "(not set)")) for key in config if best.get(key) != config[key]]
        yield pairs("the best trial differs in", other, _VALUE)
    yield "</div>"
    yield remarks(trial.tags, trial.notes)
    yield _changes(trial)
    yield _placement(state, begin)
    yield from usage_section(state)
    if trial.error:
        yield f"<h4>Error</h4><pre>{safe(trial.error[-ERROR_CHARS:])}</pre>"
    yield _notes(state)


def began(results: SweepResults) -> float:
    """Return when the first trial of a sweep began, in seconds since the epoch; 0 before that."""
    return min((at for trial in results.record.trials.values() for at, _ in trial.moves), default=0.0)


def standing(trial: TrialResult, state: TrialState) -> str:
    """Return how a trial stands, after its number: "is running", "was stopped"."""
    said = trial.outcome if trial.outcome != "has not ended" else f"is {state.state.lower()}"
    return said if trial.stop_reason is None else f"{said} ({trial.stop_reason})"


def _facts(trial: TrialResult, state: TrialState) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [("id", trial.id), ("state", trial.state)]
    if trial.history:
        facts.append(("reports", len(trial.history)))
    if trial.metrics:
        facts.append(("best report", when(trial.metrics)))
        facts += reported(trial)
    facts += [("time", elapsed(trial.seconds)), ("workers", state.workers), ("seed", trial.seed)]
    facts += trial.used.items()
    return [(key, value) for key, value in facts if value is not None]


def when(report: dict[str, Any]) -> str:
    """Return which report of its trial this is, in words; epochs are counted from 1."""
    number, epoch = report.get("training_iteration"), report.get("epoch")
    return f"epoch {epoch + 1} (report {number})" if isinstance(epoch, int) else f"report {number}"


def reported(trial: TrialResult) -> list[tuple[str, Any]]:
    """Return the metrics of a trial's best report, without those that say when it came."""
    left_out = ("timestamp", "epoch", "training_iteration")
    return [(key, value) for key, value in trial.metrics.items() if key not in left_out and value is not None]


def _changes(trial: TrialResult) -> str:
    if not trial.changes:
        return ""
    left = len(trial.changes) - _MOST_CHANGES
    rows = "".join(
        f"<li>after report {safe(change['training_iteration'])} took over trial {safe(change['parent'])}: "
        f"{safe(cell(change['config']))}</li>"
        for change in trial.changes[-_MOST_CHANGES:]
    )
    more = f"<p>{left} earlier left out.</p>" if left > 0 else ""
    return f"<h4>Changes of its configuration</h4><ul>{rows}</ul>{more}"


def _placement(state: TrialState, begin: float) -> str:
    """Return on which nodes its ranks trained, gang by gang, in a sweep that began at ``begin``."""
    if not state.gangs:
        return ""
    left = len(state.gangs) - _MOST_GANGS
    rows = []
    for gang in state.gangs[-_MOST_GANGS:]:
        took = max(0.0, gang["ready"] - gang["began"])
        start = f"{'warm' if gang['warm'] else 'cold'}, {took:.1f} s"
        cells = (elapsed(max(0.0, gang["began"] - begin)), start, len(gang["nodes"]), _ranks(gang["nodes"]))
        rows.append([f"<td>{safe(text)}</td>" for text in cells])
    more = f"<p>{left} earlier left out.</p>" if left > 0 else ""
    names = ("since the sweep began", "start", "workers", "nodes and ranks")
    return f"<h4>Placement</h4>{table(names, rows)}{more}"


def _ranks(nodes: Sequence[str]) -> str:
    """Return the ranks of each node, of a list that has the node of each rank: ``a: 0-3, b: 4``."""
    found = []
    for node in dict.fromkeys(nodes):
        ranks = [rank for rank, name in enumerate(nodes) if name == node]
        spans = []
        for _, group in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
            span = [rank for _, rank in group]
            spans.append(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}")
        found.append(f"{node}: {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}")
    return "; ".join(found)


def _notes(state: TrialState) -> str:
    if not state.notes:
        return ""
    left = len(state.notes) - _MOST_NOTES
    rows = "".join(f"<li>{safe(text)}</li>" for _, text in state.notes[:_MOST_NOTES])
    more = f"<p>{left} more left out.</p>" if left > 0 else ""
    return f"<h4>Messages</h4><ul>{rows}</ul>{more}"


def curve(trial: TrialResult, metric: str, mode: str) -> str:
    """Return a metric of a trial over its reports, as SVG with a caption; only the caption for fewer than two numbers.

    The axis is logarithmic for values that span decades. The line has a gap where a report has no finite number.
    """
    points = [(progress(report), _finite(report, metric)) for report in trial.history]
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return "" if not values else f"<p>{safe(metric)} was reported once: {safe(compact(values[0]))}.</p>"
    log = is_wide(values)
    low, high = min(values), max(values)
    best = max(values) if mode == "max" else min(values)
    place = next(number for number, (_, value) in enumerate(points) if value == best)
    step = math.ceil(len(points) / _MOST_POINTS)
    kept = [number for number in range(len(points)) if number % step == 0 or number in (place, len(points) - 1)]
    first, last = points[0][0], points[-1][0]
    unit = "epoch" if isinstance(trial.history[-1].get("epoch"), int) else "report"
    scale = ", logarithmic scale" if log else ""
    thin = f", every {ordinal(step)} report" if step > 1 else ""
    said = f"{metric} over {unit}s {first} to {last}{scale}{thin}; best {compact(best)} at {unit} {points[place][0]}"
    return drawing([points[number] for number in kept], said, (low, high), mark=(points[place][0], best), log=log)


def _finite(report: dict[str, Any], metric: str) -> float | None:
    value = metric_value(report, metric)
    return value if value is not None and math.isfinite(value) else None
