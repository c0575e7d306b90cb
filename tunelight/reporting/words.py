"""A sweep's state as text: lines for a terminal, and short forms of values."""

from __future__ import annotations

from typing import Any, Final

from tunelight.record import (
    FINISHED,
    OUTCOMES,
    PAUSED,
    RUNNING,
    TERMINAL,
    VERBS,
    SweepState,
    TrialState,
    metric_value,
    repeated,
    winner,
)
from tunelight.record.view import STARTING, epochs, metric_of
from tunelight.results.trial import counted, in_words, missing
from tunelight.settings.checks import flatten
from tunelight.stores.masking import printable

_MESSAGE_CHARS: Final = 300
STYLES: Final = {name: outcome.style for name, outcome in OUTCOMES.items()} | {STARTING: "dim"}
_COUNTED: Final = {name: outcome.counted or outcome.verb for name, outcome in OUTCOMES.items()}


def end_line(state: SweepState, trial: TrialState, total: int | None) -> str:
    """Return the one line that says how a trial ended."""
    metric, best = metric_of(state), winner(state)
    again = "" if trial.repeats is None else f" (repeats {short_id(trial.repeats)})"
    trained = epochs(trial.history[-1]) if trial.history else None
    length = counted(len(trial.history), "report") if trained is None else counted(trained, "epoch")
    when = f"after {length}" if trial.history else "before its first report"
    parts = [f"trial {short_id(trial.id)}{again} {VERBS.get(trial.state, 'ended')} {when}"]
    if trial.value is not None:
        parts.append(f"{metric}={compact(trial.value)}")
    found = [] if best is None else [f"best {compact(best.value)} by {short_id(best.trial)}"]
    if found or state.ahead:
        parts.append(f"({'; '.join(filter(None, [*found, ahead(state)]))})")
    parts.append(done(state, total))
    return "  ".join(parts)


def best_line(state: SweepState) -> str:
    """Return the best report of a sweep and its configuration; empty before the first report.

    A failed trial with a better report is named at the end.
    """
    best, failed = winner(state), ahead(state)
    if best is None:
        return f"no trial that did not fail has reported {metric_of(state)}: {failed}" if failed else ""
    when = f"epoch {best.epoch + 1}" if best.epoch is not None else f"report {best.training_iteration}"
    leaves = flatten(state.trials[best.trial].config_at(best.training_iteration)).items()
    config = ", ".join(f"{key}={None if value is None else compact(value)}" for key, value in leaves)
    trial = state.trials[best.trial]
    report = trial.history[trial.best] if trial.best is not None else {}
    also = "".join(f", {name}={compact(metric_value(report, name))}" for name in state.further)
    line = f"best {metric_of(state)}={compact(best.value)}{also} by trial {short_id(best.trial)} at {when}: {config}"
    return f"{line} ({failed})" if failed else line


def ahead(state: SweepState) -> str:
    """Return the failed trial whose report was better than the best; empty if there is none."""
    best = state.ahead
    if best is None:
        return ""
    return f"{compact(best.value)} by {short_id(best.trial)}, which {VERBS[state.trials[best.trial].state]}"


def describe_error(trial: TrialState) -> str:
    """Return which rank of a trial failed and how, and where its traceback is."""
    error = trial.error or {}
    rank = error.get("rank")
    who = f"rank {rank}: " if isinstance(rank, int) and rank >= 0 else ""
    message = " ".join(str(error.get("message", "")).split())
    if len(message) > _MESSAGE_CHARS:
        message = f"{message[:_MESSAGE_CHARS]}..."
    where = f" (traceback: {trial.folder}/log.txt)" if error.get("traceback") and trial.folder else ""
    how = VERBS.get(trial.state, "failed")
    judged = trial.failed and not OUTCOMES[trial.state].raised
    type_name = "" if judged else f"{error.get('type_name', 'error')}: "
    return f"trial {short_id(trial.id)} {how}: {who}{type_name}{message}{where}"


def event_line(state: SweepState, event: tuple[float, str | None, str, str]) -> str:
    """Return an event of the record as a line; empty for those that are not shown, as a start."""
    _, trial_id, kind, detail = event
    who = f"trial {short_id(trial_id)}" if trial_id else ""
    if kind == "note":
        return f"{who}: {detail}" if who else detail
    if kind == "config":
        return f"{who} took over trial {short_id(detail)}"
    if detail == PAUSED:
        return f"{who} paused"
    if detail not in VERBS:
        return ""
    value = state.trials[trial_id].value if trial_id in state.trials else None
    return f"{who} {VERBS[detail]}" + ("" if value is None else f", {metric_of(state)}={compact(value)}")


def summary(state: SweepState, now: float) -> str:
    """Return a summary of an ended sweep, in one paragraph."""
    counts = [f"{state.counts[key]} {_COUNTED[key]}" for key in VERBS if state.counts[key]]
    left = len(state.trials) - ended(state)
    if left:
        counts.append(f"{left} not ended")
    name = f"Sweep {state.sweep['name']}" if state.sweep.get("name") else "The sweep"
    again = len(state.repetitions)
    trials = counted(len(state.trials) - again, "trial") + (f" and {counted(again, 'repetition')}" if again else "")
    how = f" ({', '.join(counts)})" if counts else ""
    best = best_line(state) or f"no trial reported the metric {metric_of(state)!r}"
    text = f"{name} ended after {elapsed(age(state, now))}: {trials}{how}. {best[0].upper()}{best[1:]}"
    if found := repeated(state):
        text += f". Its configuration, that of trial {short_id(found[0].trial)}: {in_words(found[0])}"
    lacks = missing(state)
    return f"{text}. {lacks}" if lacks else text


def counts(state: SweepState, total: int | None) -> str:
    """Return how many trials are in which state."""
    starting = sum(trial.starting for trial in list(state.live.values()))
    numbers = {**state.counts, RUNNING: state.counts[RUNNING] - starting, FINISHED: 0}
    shown = [f"{numbers[key]} {word}" for key, word in _COUNTED.items() if word and numbers[key]]
    return ", ".join([done(state, total), *([f"{starting} starting"] if starting else []), *shown])


def done(state: SweepState, total: int | None) -> str:
    """Return how many trials have ended, of how many; and how many of the repetitions that have begun."""
    again = [trial.state in TERMINAL for trial in list(state.repetitions.values())]
    searched = ended(state) - sum(again)
    beyond = f", {sum(again)}/{len(again)} repetitions" if again else ""
    return (f"{searched}/{total} done" if total else f"{searched} done") + beyond


def ended(state: SweepState) -> int:
    """Return how many trials have ended."""
    return sum(state.counts[key] for key in TERMINAL)


def age(state: SweepState, now: float) -> float:
    """Return the seconds that the sweep ran, in all of its runs: the last one until it ended, or now."""
    end = now if state.ended is None or state.updated is None else state.updated
    return state.before + (max(0.0, end - state.started) if state.started is not None else 0.0)


def last_value(trial: TrialState, metric: str) -> Any:
    """Return the metric in a trial's last report, including NaN; None without one."""
    report = trial.history[-1] if trial.history else {}
    return report.get(metric, metric_value(report, metric))


def short_id(trial_id: str | None) -> str:
    """Return the number at the end of a trial's id, as tunelight's and Tune's have; else the id."""
    tail = (trial_id or "").rsplit("_", 1)[-1]
    return tail if tail.isdecimal() else str(trial_id)


def compact(value: Any) -> str:
    """Return a value as short text: four digits of a number, the start of a long text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int) and abs(value) < 1_000_000:
        return str(value)
    if isinstance(value, int | float):
        try:
            return f"{float(value):.4g}"
        except OverflowError:
            return f"{str(value)[:20]}..."
    text = printable(str(value))
    return text if len(text) <= 24 else f"{text[:21]}..."


def elapsed(seconds: float) -> str:
    """Return a duration as ``8s``, ``3m 05s`` or ``2h 10m``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
