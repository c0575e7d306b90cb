"""The sections of a sweep's page and of a trial's, as plain data that the page's script lays out.

A section has a ``title``, and a ``figure`` of plotly or ``blocks``. A block is a dict with one of the keys ``head``,
``text``, ``pre``, ``items``, ``pairs``, ``rows`` (of a table, under ``names``), ``chart``, ``link``,
``beside`` (blocks side by side) or ``inside`` (blocks to be opened), and maybe a ``title``. A cell is a number, text,
None, or a dict with ``text`` and the ``trial`` that it links to.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import first_of
from tunelight.record import read_sweep_file, view
from tunelight.record.view import plain, plain_pairs
from tunelight.reporting.words import compact, elapsed
from tunelight.results.words import counted, lines_of
from tunelight.settings.checks import flatten
from tunelight.stores import store_of
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    from tunelight.record import TrialState
    from tunelight.results import SweepResults, TrialResult

Block = dict[str, Any]
Section = dict[str, Any]

ERROR_CHARS: Final = 6000
"""Of a traceback: its end."""
SETTINGS: Final = (
    *("num_samples", "max_epochs", "scheduler", "searcher", "workers"),
    *("backend", "seed", "train", "model", "data"),
)
"""The settings that a page shows."""
PARTS: Final = {
    "about": "About",
    "history": "History",
    "importances": "Importances",
    "slices": "Slices",
    "learning_curves": "All learning curves",
    "failures": "What failed",
    "notes": "What was said on the way",
}
"""The sections of a sweep's page that need all reports in memory, with their headings until they are there."""
_ALL: Final = 100
"""Trials up to which a report has the details of each."""
_BEST: Final = 50
_FAILED: Final = 50
_MOST_CURVES: Final = 12
_MOST_GANGS: Final = 20
_MOST_NOTES: Final = 100
LOG: Final = "log.txt"
_MOST_CHANGES: Final = 10
_MOST_ERRORS: Final = 200
_MOST_FRONT: Final = 30
_WIDE: Final = 100.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""
_MOST_CHECKPOINTS: Final = 50
_VALUE: Final = 2000
"""Characters of a configuration's value."""
_LOG_LINES: Final = 30
_LOG_BYTES: Final = 4096
_NOTE: Final = "<br><sup>"
"""Begins the smaller line of a figure's title."""
_TITLE_HEIGHT: Final = 50
"""Pixels of a figure's title, which the page shows as text of its own."""


# -- a sweep


def parts(results: SweepResults) -> Iterator[tuple[str, Section | None]]:
    """Yield the sections of a sweep's page by their names in :data:`PARTS`; None where there is nothing to show."""
    from tunelight.extras.figures import FIGURES

    curves, reported = view.with_curves(results.record)
    for name in PARTS:
        if name in FIGURES:
            # The page's own curves are those of all trials, unless there are too many.
            left_out = name == "learning_curves" and len(curves) == reported
            yield name, None if left_out else figure_section(FIGURES[name](results))
        else:
            yield name, {"about": _about, "failures": _failures, "notes": _notes}[name](results)


def figure_section(figure: Any) -> Section:
    """Return a figure of plotly as a section: its title as text, for plotly does not break one into lines."""
    title, _, note = str(figure.layout.title.text or "").partition(_NOTE)
    section = {"title": html.unescape(title), "note": html.unescape(note.removesuffix("</sup>"))}
    if not figure.data:
        said = " ".join(html.unescape(str(one.text)) for one in figure.layout.annotations)
        return {**section, "blocks": [{"text": said}]}
    drawn = json.loads(figure.to_json())
    layout = drawn["layout"]
    layout.pop("title", None)
    layout["margin"] = {**layout.get("margin", {}), "t": max(30, int(figure.layout.margin.t or 80) - _TITLE_HEIGHT)}
    layout["height"] = int(figure.layout.height or 460) - _TITLE_HEIGHT
    return {**section, "figure": drawn}


def _about(results: SweepResults) -> Section:
    """Return what is said of a sweep beside its best configuration, and how it was run."""
    state, metric = results.record, view.metric_of(results.record)
    blocks: list[Block] = [{"text": line} for line in lines_of(state)]
    if state.best is not None and len(results.objectives) > 1:
        names = " and ".join(f"{name} ({mode})" for name, mode in results.objectives)
        front = [str(trial.index) for trial in results.pareto()]
        blocks.append({"text": f"On the Pareto front of {names}: {first_of(front, _MOST_FRONT)}"})
    if (failed := results.ahead) is not None:
        said = f"Trial {failed.index}, which {failed.outcome}, had reported {metric}={compact(failed.value)}."
        blocks.append({"text": said})
        if state.best is None:
            blocks.append({"text": f"Each trial that has reported a number as {metric} has failed."})
    elif state.best is None:
        blocks.append({"text": f"No trial has reported a number as {metric} yet."})
    return {"blocks": [*blocks, how_it_was_run(results)]}


def how_it_was_run(results: SweepResults) -> Block:
    """Return a sweep's settings and the versions that it ran on."""
    known = settings_of(results)
    rows = [(key, known[key]) for key in SETTINGS if known.get(key) is not None]
    tables = [_pairs("setting", rows), _pairs("version", known.get("versions") or {})]
    return {"title": "How it was run", "inside": [{"beside": tables}]}


def settings_of(results: SweepResults) -> dict[str, Any]:
    """Return a sweep's settings: those of ``sweep.yaml``, or of its record where there is none."""
    return read_sweep_file(results.folder) or dict(results.record.sweep)


def _failures(results: SweepResults) -> Section | None:
    failed = [trial for trial in results.every_trial if trial.error]
    blocks: list[Block] = []
    for trial in failed[:_MOST_ERRORS]:
        error = trial.error or ""
        first = plain(next(iter(error.splitlines()), ""))
        link = {"text": f"trial {trial.index}", "trial": trial.index}
        title = f"{trial.state}: {first}"
        blocks.append({"link": link, "title": title, "inside": [{"pre": error[-ERROR_CHARS:]}]})
    if len(failed) > _MOST_ERRORS:
        said = f"{len(failed) - _MOST_ERRORS} more are in the table; results.errors has them all."
        blocks.append({"text": said})
    return {"title": f"What failed ({len(failed)})", "blocks": blocks} if failed else None


def _notes(results: SweepResults) -> Section | None:
    said: dict[str, list[int | None]] = {}
    for trial_id, text in results.record.notes:
        trial = results.record.trials.get(trial_id or "")
        said.setdefault(text, []).append(trial.index if trial else None)
    items = []
    for text, who in list(said.items())[:_MOST_NOTES]:
        first = "" if who[0] is None else f"trial {who[0]}: "
        again = len(who) - 1
        more = "" if not again else " (and once more)" if again == 1 else f" (and {again} times more)"
        items.append(f"{first}{text}{more}")
    return {"title": f"What was said on the way ({len(said)})", "blocks": [{"items": items}]} if said else None


# -- a trial


def chosen(results: SweepResults) -> tuple[list[TrialResult], str]:
    """Return the trials whose details a report has, and a sentence that says which, where those are not all."""
    trials = results.every_trial
    if len(trials) <= _ALL:
        return trials, ""
    best = {trial.id for trial in results.top(_BEST)}
    every = [trial.id for trial in trials if trial.failed]
    kept = best | set(every[:_FAILED])
    failed = f"the first {_FAILED} of {len(every)}" if len(every) > _FAILED else f"the {counted(len(every), 'trial')}"
    said = (
        f"Of {counted(len(trials), 'trial')}, this report has the details of the {len(best)} best and of {failed} that "
        "failed; tunelight show SWEEP TRIAL shows those of the others."
    )
    return [trial for trial in trials if trial.id in kept], said


def trial_blocks(
    trial: TrialResult,
    state: TrialState,
    objectives: Sequence[tuple[str, str]],
    begin: float,
    best: Mapping[str, Any],
) -> list[Block]:
    """Return all that is known of a trial but its log.

    Args:
        trial, state: the trial, and what the record has of it.
        objectives: the sweep's metrics with their modes.
        begin: when the sweep began, in seconds since the epoch.
        best: the configuration of the best trial, its keys dotted, to be shown beside where it differs.
    """
    config = flatten(trial.plain_config)
    other = [(key, best.get(key, "(not set)")) for key in config if best.get(key) != config[key]] if best else []
    blocks: list[Block] = [
        {"head": f"Trial {trial.index} {standing(trial, state)}"},
        *_curves(trial, dict(objectives)),
        {
            "beside": [
                _pairs("configuration", config, _VALUE),
                _pairs("trial", _facts(trial, state)),
                _pairs("the best trial differs in", other, _VALUE),
            ]
        },
        *_changes(trial),
        *_placement(state, begin),
    ]
    if trial.error:
        blocks.append({"title": "Error", "pre": trial.error[-ERROR_CHARS:]})
    if state.notes:
        blocks.append({"title": "Messages", **_cut_items([text for _, text in state.notes], _MOST_NOTES)})
    sweep = trial.path.parent  # one in a store may have been deleted by now
    if kept := [one for one in state.checkpoints if (sweep / one["path"]).exists() or store_of(sweep)]:
        names = ("training_iteration", "value", "size", "path")
        rows = [[plain(one.get(name)) for name in names] for one in kept[-_MOST_CHECKPOINTS:]]
        blocks.append({"title": "Checkpoints", "names": ["report", "value", "bytes", "path"], "rows": rows})
    return blocks


def log_block(trial: TrialResult) -> list[Block]:
    """Return the end of a trial's log, where that is on this machine."""
    log = log_end(trial.path, _LOG_LINES, _LOG_BYTES)
    return [{"title": "The end of its log", "pre": log}] if log else []


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
        facts.append(("best report", view.when(trial.metrics)))
        facts += view.metrics_of(trial.metrics).items()
    facts += [("time", elapsed(trial.seconds)), ("workers", state.workers), ("seed", trial.seed)]
    return [(key, value) for key, value in facts if value is not None]


def _curves(trial: TrialResult, modes: Mapping[str, str]) -> Iterator[Block]:
    """Yield a chart of each metric over the reports, the sweep's metrics first."""
    ends = (trial.history[0], trial.history[-1]) if trial.history else ()
    names = list(dict.fromkeys([*modes, *(name for report in ends for name in _numbers(report))]))
    for name in names[:_MOST_CURVES]:
        yield from _curve(trial, name, modes.get(name, "max" if "acc" in name else "min"))
    if left := names[_MOST_CURVES:]:
        yield {"text": f"Without a curve here: {plain(', '.join(left), 400)}."}


def _numbers(report: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of a report's numbers; nested ones as ``outer/inner``."""
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and key not in view.WHEN:
            yield f"{prefix}{key}"


def _curve(trial: TrialResult, metric: str, mode: str) -> Iterator[Block]:
    """Yield a metric over a trial's reports."""
    xs, ys = view.curve_of(trial.history, metric).points()
    if len(ys) < 2:
        if ys:
            yield {"text": f"{metric} was reported once: {compact(ys[0])}."}
        return
    found = [
        (value, view.progress(report)) for report in trial.history if (value := view.finite(report, metric)) is not None
    ]
    best, at = min(found, key=lambda pair: -pair[0] if mode == "max" else pair[0])
    unit = "report" if view.epochs(trial.history[-1]) is None else "epoch"
    chart = {"unit": unit, "x": xs, "y": ys, "mark": [at, best], "log": len(ys) > 1 and max(ys) >= _WIDE * min(ys) > 0}
    yield {"title": f"{metric}; best {compact(best)} at {unit} {at}", "chart": chart}


def _changes(trial: TrialResult) -> Iterator[Block]:
    if trial.changes:
        began = trial.branch
        items = [] if began is None else [f"began with the state of trial {began.parent} after report {began.number}"]
        items += [
            f"after report {change['training_iteration']} took over trial {change['parent']}: {plain(change['config'])}"
            for change in trial.changes[len(items) :]
        ]
        yield {"title": "Changes of its configuration", **_cut_items(items, _MOST_CHANGES)}


def _placement(state: TrialState, begin: float) -> Iterator[Block]:
    """Yield on which nodes its ranks trained, gang by gang, in a sweep that began at ``begin``."""
    rows = []
    for gang in state.gangs[-_MOST_GANGS:]:
        took = max(0.0, gang["ready"] - gang["began"])
        start = f"{'warm' if gang['warm'] else 'cold'}, {took:.1f} s"
        rows.append([elapsed(max(0.0, gang["began"] - begin)), start, len(gang["nodes"]), _ranks(gang["nodes"])])
    if rows:
        names = ["since the sweep began", "start", "workers", "nodes and ranks"]
        yield {"title": "Placement", "names": names, "rows": rows}
    if (left := len(state.gangs) - _MOST_GANGS) > 0:
        yield {"text": f"{left} earlier left out."}


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


# -- blocks


def _pairs(title: str, rows: Mapping[str, Any] | Sequence[tuple[str, Any]], limit: int = view.CELL) -> Block:
    return {"title": title, "pairs": plain_pairs(rows, limit)}


def _cut_items(items: list[str], most: int) -> Block:
    left = len(items) - most
    return {"items": [*([f"{left} earlier are left out."] if left > 0 else []), *items[-most:]]}


def moment(seconds: float) -> str:
    """Return a time in seconds since the epoch as date and time of day."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def log_end(folder: Path, lines: int = 30, size: int = 4096) -> str:
    """Return the last lines that a trial's ranks printed; empty if its log is not on this machine.

    Passwords and tokens in addresses are masked.

    Args:
        folder: the trial's (``TrialResult.path``). Of a sweep in a store nothing is fetched.
        lines: how many at most.
        size: bytes at most; where these do not suffice, the text begins within a line.
    """
    try:
        with (folder / LOG).open("rb") as file:
            end = file.seek(0, 2)
            # Further back than needed: a secret that begins before the cut must be seen in full to be masked.
            file.seek(max(0, end - 2 * size))
            text = file.read(2 * size).decode("utf-8", errors="replace")
    except OSError:
        return ""
    kept = "\n".join(masked(text).splitlines()[-lines:]).encode()[-size:]
    return kept.decode("utf-8", errors="ignore")
