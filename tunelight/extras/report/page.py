"""The report: the live page of a sweep with its data in it, as one HTML file that needs no server and no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import heapq
import html
import importlib.util
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import ReportError, first_of, guess
from tunelight.machine.processes import collector_resting
from tunelight.record import OUTCOMES, RUNNING, SweepState, TrialState, read_sweep_file, view, winner, write_text
from tunelight.record.view import numbers_in, plain
from tunelight.reporting.words import age, compact, elapsed, event_line
from tunelight.results.trial import counted, lines_of
from tunelight.settings.checks import flatten
from tunelight.space.kinds import even_scales
from tunelight.stores import store_of
from tunelight.stores.masking import masked

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tunelight.results import SweepResults, TrialResult


FILE: Final = "report.html"
SCRIPTS: Final = ("page.js", "live.js", "sweep.js")
STYLE: Final = "page.css"
LINKS: Final = {"#curves": "Curves", "#trials": "Trials", "#figures": "Figures", "#events": "Events"}
MOST_ROWS: Final = 10_000
"""Trials that a page gets: the latest."""
_MOST_BEST: Final = 100
"""Curves of trials that have the best values; running trials have theirs besides."""
_MOST_LIVE: Final = 64
_LONG: Final = 100_000
"""Characters from which on a part of a saved page is compressed."""
_EVENT: Final = 400
"""Characters of an event."""


def report(results: SweepResults, path: str | os.PathLike[str]) -> Path:
    """Write a report of a sweep as one HTML file, which works offline; return its path.

    Args:
        results: of a sweep, also one that still runs, that failed, or that has no trial yet.
        path: the file; of a folder, ``report.html`` in it.

    The file holds plotly.js (2 MB, compressed) and all data; text of configurations, errors and logs is shown as it is,
    never run.
    Raises: StorageError where the file cannot be written. Runs on: driver, or anywhere that has the sweep's folder.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        target = target / FILE
    with collector_resting():
        write_text(target.absolute(), page(results))
    return target.absolute()


def page(results: SweepResults) -> str:
    """Return the HTML of one sweep's report."""
    state, seen = results.record, view.ColumnStats(results.record.trials.values())
    trials = [state.trials[trial.id] for trial in results.every_trial][-MOST_ROWS:]
    curves, reported = with_curves(state)
    metric = view.metric_of(state)
    shown, which = chosen(results)
    best = best_config(results)
    space = settings_of(results).get("space")
    head = sweep_head(state, seen, results.name, state.ended or "not ended", state.updated, space=space)
    message = {
        "head": head,
        "rows": [_rounded(view.row(state, trial, state.updated)) for trial in trials],
        "curves": {trial.index: view.curve_of(trial.history, metric).points() for trial in curves},
        "of": reported,
    }
    data = {
        "state": message,
        **{f"part-{name}": section for name, section in parts(results)},
        **{
            f"trial-{trial.index}": [
                *trial_blocks(results, trial, best),
                *([{"title": "The end of its log", "pre": log}] if (log := log_end(trial.path)) else []),
            ]
            for trial in shown
        },
    }
    body = [
        "<noscript>This report needs JavaScript.</noscript>",
        asset("sweep.html"),
        f'<template id="trial-page">{asset("trial.html")}</template>',
    ]
    facts = {"sweep": results.name, "parts": PARTS, "which": which}
    return _saved(results.name, body, facts=facts, data=data)


def _rounded(value: Any) -> Any:
    """Return plain data with six digits of each number, more than a page shows."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def sweep_head(
    state: SweepState, seen: view.ColumnStats, name: str, standing: str, until: float | None, *, space: Any
) -> dict[str, Any]:
    """Return what a page says of a sweep as a whole.

    Its ``standing`` is in words, time counts ``until`` then, and ``space`` is the search space as in ``sweep.yaml``.
    """
    lines = [(event[0], event_line(state, event)) for event in reversed(list(state.events))]
    total = state.sweep.get("num_samples")
    return {
        "trials": len(state.trials) - len(state.repetitions),
        "repetitions": len(state.repetitions),
        "total": total if isinstance(total, int) else None,
        "counts": {name: count for name, count in state.counts.items() if count},
        "best": _best(state),
        "metric": view.metric_of(state),
        "mode": state.mode,
        "unit": view.unit(state.trials.values()),
        "columns": [asdict(column) for column in view.columns(state, seen)],
        "updated": state.updated,
        "rungs": view.rungs(state),
        "more": max(0, len(state.trials) - MOST_ROWS),
        "name": name,
        "state": standing,
        "seconds": age(state, until or 0.0),
        "even": even_scales(space or {}),
        "events": [[at, view.plain(line, _EVENT)] for at, line in lines if line],
    }


def _best(state: SweepState) -> dict[str, Any] | None:
    best = winner(state)
    if best is None:
        return None
    trial = state.trials[best.trial]
    report = {} if trial.best is None else trial.history[trial.best]
    among = "of all trials that did not fail" if state.ahead else "of all reports"
    if state.repetitions:
        among = "of the configuration with the best mean"
    return {
        "trial": best.index,
        "value": plain(best.value),
        "when": _when(report),
        "among": f"{'highest' if state.mode == 'max' else 'lowest'} {among}",
        "config": _plain_pairs(flatten(trial.config_at(best.training_iteration))),
        "report": _plain_pairs(_metrics_of(report)),
    }


def with_curves(state: SweepState) -> tuple[list[TrialState], int]:
    """Return the trials whose curves are shown, the best and the running ones, and how many have reported a number."""
    sign = -1.0 if state.mode == "max" else 1.0
    reported = [trial for trial in state.searched if trial.value is not None]
    best = heapq.nsmallest(_MOST_BEST, reported, key=lambda trial: sign * (trial.value or 0.0))
    live = [trial for trial in list(state.live.values())[:_MOST_LIVE] if trial.value is not None]
    return list({trial.id: trial for trial in [*best, *live]}.values()), len(reported)


def colours() -> dict[str, str]:
    """Return the colour of each state of a trial."""
    return {name: outcome.colour for name, outcome in OUTCOMES.items()} | {view.STARTING: OUTCOMES[RUNNING].colour}


def _when(report: Mapping[str, Any]) -> str:
    """Return which report of its trial this is, in words; epochs are counted from 1."""
    number, epoch = report.get("training_iteration"), view.epochs(report)
    return f"report {number}" if epoch is None else f"epoch {epoch} (report {number})"


def _metrics_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a report, without its time and its place in training."""
    return {key: value for key, value in report.items() if key not in view.WHEN and value is not None}


def _plain_pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]], limit: int = view.CELL) -> list[list[Any]]:
    """Return keys and values as a list of pairs that JSON can hold."""
    items = values.items() if isinstance(values, Mapping) else values
    return [[plain(str(key)), plain(value, limit)] for key, value in items]


def _saved(title: str, body: Iterable[str], *, facts: dict[str, Any], data: dict[str, Any]) -> str:
    """Return a sweep's page that needs no other file: its style, its scripts with plotly's, and its data."""
    from plotly.offline import get_plotlyjs  # plotly costs most of a second

    first, scripts = asset("open.js"), {"plotly": get_plotlyjs(), "page": "\n".join(map(asset, SCRIPTS))}
    # A page that shows what others wrote: only these three scripts run in it, and nothing is fetched. plotly's WebGL
    # part writes functions of its own, which is what unsafe-eval lets it.
    hashes = " ".join(map(_hash, (first, *scripts.values())))
    policy = (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{asset(STYLE)}</style>",
    ]
    inlined = [_part(f"data-{name}", "application/json", _in_script(value)) for name, value in data.items()]
    inlined += [_part(f"run-{name}", "text/plain", script) for name, script in scripts.items()]
    facts = {**facts, "saved": True, "readOnly": True, "colours": colours()}
    return frame(
        "sweep",
        title,
        LINKS,
        facts,
        head=head,
        body=body,
        scripts=[*inlined, f"<script>{first}</script>"],
    )


def _part(name: str, kind: str, text: str) -> str:
    """Return a script element that does not run by itself; a long one is compressed."""
    if len(text) > _LONG:
        kind, text = "application/gzip", base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="{kind}" id="{name}">{text}</script>'


def frame(
    kind: str,
    title: str,
    links: Mapping[str, str],
    facts: Mapping[str, Any],
    *,
    head: Iterable[str],
    body: Iterable[str],
    scripts: Iterable[str],
) -> str:
    """Return a page: its head, a header with the title and links, the body and the scripts.

    Args:
        kind: which page it is, for its script: "sweeps", "sweep" or "trial".
        title: of the page, not escaped.
        links: names of links at the top, by their addresses.
        facts: what its script reads.
        head, body, scripts: HTML, in order.
    """
    shown = "".join(f'<a href="{html.escape(where)}">{html.escape(name)}</a>' for where, name in links.items())
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}: tunelight</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        *head,
        f'</head><body data-page="{kind}" data-told="{html.escape(json.dumps(facts))}">',
        f'<header><h1>{html.escape(title)}</h1><button id="theme" type="button">light / dark</button>',
        f'<nav>{shown}</nav></header><p id="trouble" role="status" hidden></p><main>',
        *body,
        f"</main><footer>tunelight, {time.strftime('%Y-%m-%d %H:%M')}</footer>",
        *scripts,
        "</body></html>\n",
    ]
    return "\n".join(parts)


def asset(name: str) -> str:
    """Return a script, a style sheet or markup of the pages."""
    return resources.files("tunelight.extras.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _in_script(value: Any) -> str:
    """Return a value as JSON that ends no script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- Write figures as pictures, with kaleido and a browser ----------------------------------------


_KINDS = ("png", "svg", "pdf", "jpeg", "webp")
_HOW = (
    "Plotly draws pictures with kaleido and a Chrome or Chromium: pip install 'tunelight[png]', and have one of those "
    "installed (`plotly_get_chrome` fetches one; BROWSER_PATH names one elsewhere). Without them, "
    "figure.write_html(path) and tunelight.reporting.report(results, path) need nothing more."
)


def write_image(
    figure: go.Figure, path: str | os.PathLike[str], *, width: int = 1200, height: int | None = None, scale: float = 2
) -> Path:
    """Write a figure as a picture by the file's suffix (.png, .svg, .pdf, .jpeg, .webp), and return the path.

    Args:
        width, height: in CSS pixels (height: the figure's own). scale: picture's pixels for each of them.

    Raises: ReportError for another suffix, without kaleido or a browser, where that does not answer within kaleido's
        90 s, or where the file cannot be written.
    """
    target = Path(path).expanduser().absolute()
    kind = target.suffix.lower().lstrip(".").replace("jpg", "jpeg")
    if kind not in _KINDS:
        raise ReportError(
            f"A picture is written as {', '.join(f'.{ext}' for ext in _KINDS)} by the file's suffix, but {str(path)!r} "
            f"has {target.suffix or 'none'!r}.{guess(kind, _KINDS)}"
        )
    if importlib.util.find_spec("kaleido") is None:
        raise ReportError(f"{target.name} cannot be drawn: kaleido is not installed. {_HOW}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        height = height or figure.layout.height or 460
        figure.write_image(target, format=kind, width=width, height=height, scale=scale)
    except TimeoutError as error:
        raise ReportError(f"{target.name} was not drawn: the browser did not answer. Try again; {_HOW}") from error
    except OSError as error:
        raise ReportError(f"{target} cannot be written: {error}.") from error
    except Exception as error:  # kaleido and its browser fail with classes of their own
        reason = " ".join(str(error).split()).rstrip(".")
        raise ReportError(f"{target.name} cannot be drawn: {type(error).__name__}: {reason}. {_HOW}") from error
    return target


# --- The sections of a sweep's page and of a trial's, as plain data that the page's script lays out -------

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
_NOTE: Final = "<br><sup>"
"""Begins the smaller line of a figure's title."""
_TITLE_HEIGHT: Final = 50
"""Pixels of a figure's title, which the page shows as text of its own."""


# -- a sweep


def parts(results: SweepResults) -> Iterator[tuple[str, Section | None]]:
    """Yield the sections of a sweep's page by their names in :data:`PARTS`; None where there is nothing to show."""
    from tunelight.extras.figures import FIGURES

    curves, reported = with_curves(results.record)
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
        content = " ".join(html.unescape(str(annotation.text)) for annotation in figure.layout.annotations)
        return {**section, "blocks": [{"text": content}]}
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
        sentence = f"Trial {failed.index}, which {failed.outcome}, had reported {metric}={compact(failed.value)}."
        blocks.append({"text": sentence})
        if state.best is None:
            blocks.append({"text": f"Each trial that has reported a number as {metric} has failed."})
    elif state.best is None:
        blocks.append({"text": f"No trial has reported a number as {metric} yet."})
    known = settings_of(results)
    rows = [(key, known[key]) for key in SETTINGS if known.get(key) is not None]
    tables = [_pairs("setting", rows), _pairs("version", known.get("versions") or {})]
    return {"blocks": [*blocks, {"title": "How it was run", "inside": [{"beside": tables}]}]}


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
        sentence = f"{len(failed) - _MOST_ERRORS} more are in the table; results.errors has them all."
        blocks.append({"text": sentence})
    return {"title": f"What failed ({len(failed)})", "blocks": blocks} if failed else None


def _notes(results: SweepResults) -> Section | None:
    by_text: dict[str, list[int | None]] = {}
    for trial_id, text in results.record.notes:
        trial = results.record.trials.get(trial_id or "")
        by_text.setdefault(text, []).append(trial.index if trial else None)
    items = []
    for text, who in list(by_text.items())[:_MOST_NOTES]:
        first = "" if who[0] is None else f"trial {who[0]}: "
        again = len(who) - 1
        more = "" if not again else " (and once more)" if again == 1 else f" (and {again} times more)"
        items.append(f"{first}{text}{more}")
    return {"title": f"What was said on the way ({len(by_text)})", "blocks": [{"items": items}]} if by_text else None


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
    sentence = (
        f"Of {counted(len(trials), 'trial')}, this report has the details of the {len(best)} best and of {failed} that "
        "failed; tunelight show SWEEP TRIAL shows those of the others."
    )
    return [trial for trial in trials if trial.id in kept], sentence


def best_config(results: SweepResults) -> dict[str, Any]:
    """Return the configuration of the best trial, its keys dotted; empty before there is one."""
    best = winner(results.record)
    return {} if best is None else flatten(results.record.trials[best.trial].config)


def trial_blocks(results: SweepResults, trial: TrialResult, best: Mapping[str, Any]) -> list[Block]:
    """Return all that is known of a trial but its log; ``best``: :func:`best_config`, shown where it differs."""
    state = results.record.trials[trial.id]
    began = min((each.moves[0][0] for each in results.record.trials.values() if each.moves), default=0.0)
    config = flatten(trial.plain_config)
    other = [(key, best.get(key, "(not set)")) for key in config if best.get(key) != config[key]] if best else []
    blocks: list[Block] = [
        {"head": f"Trial {trial.index} {standing(trial, state)}"},
        *_curves(trial, dict(results.objectives)),
        {
            "beside": [
                _pairs("configuration", config, _VALUE),
                _pairs("trial", _facts(trial, state)),
                _pairs("the best trial differs in", other, _VALUE),
            ]
        },
        *_changes(trial),
        *_placement(state, began),
    ]
    if trial.error:
        blocks.append({"title": "Error", "pre": trial.error[-ERROR_CHARS:]})
    if state.notes:
        blocks.append({"title": "Messages", **_cut_items([text for _, text in state.notes], _MOST_NOTES)})
    sweep = trial.path.parent  # one in a store may have been deleted by now
    if kept := [saved for saved in state.checkpoints if (sweep / saved["path"]).exists() or store_of(sweep)]:
        names = ("training_iteration", "value", "size", "path")
        rows = [[plain(saved.get(name)) for name in names] for saved in kept[-_MOST_CHECKPOINTS:]]
        blocks.append({"title": "Checkpoints", "names": ["report", "value", "bytes", "path"], "rows": rows})
    return blocks


def standing(trial: TrialResult, state: TrialState) -> str:
    """Return how a trial stands, after its number: "is running", "was stopped"."""
    status = trial.outcome if trial.outcome != "has not ended" else f"is {state.state.lower()}"
    return status if trial.stop_reason is None else f"{status} ({trial.stop_reason})"


def _facts(trial: TrialResult, state: TrialState) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [("id", trial.id), ("state", trial.state)]
    if trial.history:
        facts.append(("reports", len(trial.history)))
    if trial.metrics:
        facts.append(("best report", _when(trial.metrics)))
        facts += _metrics_of(trial.metrics).items()
    facts += [("time", elapsed(trial.seconds)), ("workers", state.workers), ("seed", trial.seed)]
    return [(key, value) for key, value in facts if value is not None]


def _curves(trial: TrialResult, modes: Mapping[str, str]) -> Iterator[Block]:
    """Yield a chart of each metric over the reports, the sweep's metrics first."""
    ends = (trial.history[0], trial.history[-1]) if trial.history else ()
    names = list(dict.fromkeys([*modes, *(name for report in ends for name in numbers_in(report))]))
    for name in names[:_MOST_CURVES]:
        yield from _curve(trial, name, modes.get(name, "max" if "acc" in name else "min"))
    if left := names[_MOST_CURVES:]:
        yield {"text": f"Without a curve here: {plain(', '.join(left), 400)}."}


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
    return {"title": title, "pairs": _plain_pairs(rows, limit)}


def _cut_items(items: list[str], most: int) -> Block:
    left = len(items) - most
    return {"items": [*([f"{left} earlier are left out."] if left > 0 else []), *items[-most:]]}


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
