"""A sweep as one HTML file that needs nothing else: overview, figures, and a table of all trials."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import first_of
from tunelight.record import OUTCOMES, metric_value, read_sweep_file, write_text
from tunelight.reporting.figures.data import judged_by, progress
from tunelight.reporting.words import compact, elapsed
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.results import SweepResults, TrialResult

FILE: Final = "report.html"
_MOST_KEYS: Final = 40
"""Keys of the configurations that have a column in the table."""
_MOST_NOTES: Final = 100
_MOST_ERRORS: Final = 200
_ERROR_CHARS: Final = 6000
"""Of a traceback: its end."""
_CELL: Final = 160
_MOST_FRONT: Final = 30
_TOLD: Final = (
    "num_samples",
    "max_epochs",
    "scheduler",
    "searcher",
    "workers",
    "backend",
    "seed",
    "train",
    "model",
    "data",
)
_HEADINGS: Final = {
    "history": "History",
    "learning_curves": "Learning curves",
    "importances": "Importances",
    "parallel": "Parallel coordinates",
    "slices": "Slices",
    "timeline": "Timeline",
    "pareto": "Pareto front",
}


def report(results: SweepResults, path: str | os.PathLike[str]) -> Path:
    """Write a report of a sweep as one HTML file, which works offline, and return its path.

    Args:
        results: also of a sweep that still runs, that failed, or that has no trial yet.
        path: the file; of a folder, ``report.html`` in it.

    The file holds plotly.js (5 MB) and all data; text of configurations and errors is shown as it is, never run.
    Raises: StorageError where it cannot be written. Runs on: driver, or anywhere that has the sweep's folder.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        target = target / FILE
    write_text(target.absolute(), page(results))
    return target.absolute()


def page(results: SweepResults) -> str:
    """Return the report's HTML."""
    from plotly.offline import get_plotlyjs  # plotly costs most of a second

    from tunelight.reporting.figures import FIGURES

    drawn = {name: draw(results) for name, draw in FIGURES.items()}
    scripts = [get_plotlyjs(), _asset("page.js")]
    # A page that shows what others wrote: only these two scripts run in it, and nothing is fetched. plotly's WebGL
    # part writes functions of its own, which is what unsafe-eval lets it.
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(results.name)
    headings = {"overview": "Overview", **_HEADINGS, "trials": "Trials"}
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name in headings.items())
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: tunelight</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{_asset('page.css')}</style></head><body>",
        f'<header><h1>{title}</h1><button id="theme" type="button">light / dark</button>',
        f"<nav>{links}</nav></header><main>",
        "<noscript><p>The figures need JavaScript; the table below does not.</p></noscript>",
        *_overview(results),
        *(_plot(name, figure) for name, figure in drawn.items()),
        *_table(results),
        *_failures(results),
        *_notes(results),
        f"</main><footer>tunelight, {time.strftime('%Y-%m-%d %H:%M')}</footer>",
        *(f"<script>{script}</script>" for script in scripts),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _asset(name: str) -> str:
    return resources.files("tunelight.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _plot(name: str, figure: Any) -> str:
    """Return a place for a figure, and its data as text that ends no script element."""
    data = figure.to_json().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    height = int(figure.layout.height or 460)
    return (
        f'<section id="{name}"><div class="plot" data-figure="{name}" style="height:{height}px"></div>'
        f'<script type="application/json" id="data-{name}">{data}</script></section>'
    )


def _overview(results: SweepResults) -> Iterator[str]:
    metric, mode = judged_by(results)
    state = results.record
    yield '<section id="overview"><h2>Overview</h2><dl class="cards">'
    yield _card("trials", str(len(results)))
    for name, count in state.counts.items():
        if count:
            yield _card(name.lower(), str(count), OUTCOMES[name].colour)
    if state.started is not None and state.updated is not None:
        yield _card("took" if state.ended else "so far", elapsed(state.updated - state.started))
        yield _card("trained", elapsed(sum(trial.seconds for trial in results.trials)))
    yield "</dl>"
    failed = results.ahead
    if state.best is None and failed is None:
        yield f"<p>No trial has reported a number as <b>{_safe(metric)}</b> yet.</p>"
    elif state.best is None:
        yield f"<p>Each trial that has reported a number as <b>{_safe(metric)}</b> has failed.</p>"
    else:
        best = results.best
        word = {"min": "lowest", "max": "highest"}.get(mode, "best")
        whose = "all trials that did not fail" if failed else "all reports"
        yield f"<h3>Best: trial {best.index}, with the {word} {_safe(metric)} of {whose}</h3>"
        yield f'<p class="best">{_safe(compact(best.value))}</p>'
        rows = [(key, value) for key, value in best.metrics.items() if key != "timestamp"]
        config = flatten(best.config).items()
        yield f'<div class="pair">{_pairs("configuration", config)}{_pairs("its report", rows)}</div>'
    if state.best is not None and len(results.objectives) > 1:
        names = " and ".join(f"{name} ({mode})" for name, mode in results.objectives)
        front = [str(trial.index) for trial in results.pareto()]
        said = f"On the Pareto front of {names}: {first_of(front, _MOST_FRONT)}"
        yield f"<p>{_safe(said)}</p>"
    if failed is not None:
        said = f"Trial {failed.index}, which {failed.outcome}, had reported {metric}={compact(failed.value)}."
        yield f"<p>{_safe(said)}</p>"
    told = read_sweep_file(results.folder) or dict(state.sweep)
    rows = [(key, told[key]) for key in _TOLD if told.get(key) is not None]
    versions = (told.get("versions") or {}).items()
    yield f'<details><summary>How it was run</summary><div class="pair">{_pairs("setting", rows)}'
    yield f"{_pairs('version', versions)}</div></details></section>"


def _card(name: str, value: str, colour: str = "var(--line)") -> str:
    return f'<div class="card" style="border-color:{colour}"><dt>{name}</dt><dd>{_safe(value)}</dd></div>'


def _pairs(title: str, rows: Any) -> str:
    body = "".join(f"<tr><th>{_safe(key)}</th><td>{_safe(_cell(value))}</td></tr>" for key, value in rows)
    return f'<table class="pairs"><caption>{title}</caption>{body}</table>' if body else ""


def _table(results: SweepResults) -> Iterator[str]:
    """Yield the table of trials; cells with numbers carry the value to sort by."""
    metric, _ = judged_by(results)
    configs = [flatten(trial.config) for trial in results.trials]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    further = [f"{name} at best" for name, _ in results.objectives[1:]]
    names = [
        "trial",
        "state",
        f"best {metric}",
        f"last {metric}",
        *further,
        "epochs",
        "seconds",
        "workers",
        *keys[:_MOST_KEYS],
    ]
    left = f" The first {_MOST_KEYS} of {len(keys)} keys are shown." if len(keys) > _MOST_KEYS else ""
    yield '<section id="trials"><h2>Trials</h2><p class="tools"><label>Search <input id="search" type="search" '
    yield f'placeholder="stopped sgd"></label> <output id="count"></output>{left}</p>'
    yield '<div class="wide"><table id="table"><thead><tr>'
    yield "".join(f'<th><button type="button">{_safe(name)}</button></th>' for name in names)
    yield "</tr></thead><tbody>"
    for trial, config in zip(results.trials, configs, strict=True):
        cells = [*_fixed(results, trial, metric), *(config.get(key) for key in keys[:_MOST_KEYS])]
        yield f'<tr class="{trial.state}">{"".join(map(_td, cells))}</tr>'
    yield "</tbody></table></div></section>"


def _fixed(results: SweepResults, trial: TrialResult, metric: str) -> list[Any]:
    last = trial.history[-1] if trial.history else {}
    return [
        trial.index,
        trial.state,
        trial.value,
        last.get(metric, metric_value(last, metric)),
        *results.further(trial).values(),
        progress(last) if last else None,
        round(trial.seconds, 1),
        results.record.trials[trial.id].workers,
    ]


def _td(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{_safe(_cell(value))}</td>"
    if isinstance(value, float) and math.isnan(value):
        return '<td class="n">nan</td>'
    return f'<td class="n" data-n="{_number(value)}">{_safe(compact(value))}</td>'


def _failures(results: SweepResults) -> Iterator[str]:
    failed = [trial for trial in results.trials if trial.error]
    if failed:
        yield f'<section id="failures"><h2>What failed ({len(failed)})</h2>'
        for trial in failed[:_MOST_ERRORS]:
            error = trial.error or ""
            first = next(iter(error.splitlines()), "")
            yield f"<details><summary>trial {trial.index}, {trial.state}: {_safe(first[:_CELL])}</summary>"
            yield f"<pre>{_safe(error[-_ERROR_CHARS:])}</pre></details>"
        if len(failed) > _MOST_ERRORS:
            yield f"<p>{len(failed) - _MOST_ERRORS} more are in the table; results.errors has them all.</p>"
        yield "</section>"


def _notes(results: SweepResults) -> Iterator[str]:
    said: dict[str, list[int | None]] = {}
    for trial_id, text in results.record.notes:
        trial = results.record.trials.get(trial_id or "")
        said.setdefault(text, []).append(trial.index if trial else None)
    if said:
        yield f'<section id="notes"><h2>What was said on the way ({len(said)})</h2><ul>'
        for text, who in list(said.items())[:_MOST_NOTES]:
            first = "" if who[0] is None else f"trial {who[0]}: "
            more = f" (and {len(who) - 1} times more)" if len(who) > 1 else ""
            yield f"<li>{first}{_safe(text)}{more}</li>"
        yield "</ul></section>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return compact(value)
    text = json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."


def _safe(value: Any) -> str:
    return html.escape(str(value))


def _number(value: float) -> str:
    """Return a number as JavaScript reads it."""
    return repr(value).replace("inf", "Infinity")
