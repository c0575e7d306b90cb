"""The report: the live page of a sweep with its data in it, as one HTML file that needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import ReportError, guess
from tunelight.extras.report.sections import PARTS, began, chosen, log_block, moment, parts, settings_of, trial_blocks
from tunelight.record import view, winner, write_text
from tunelight.reporting.words import age, event_line
from tunelight.settings.checks import flatten

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tunelight.record import SweepState
    from tunelight.results import SweepResults


FILE: Final = "report.html"
SCRIPTS: Final = ("page.js", "live.js", "sweep.js")
STYLE: Final = "page.css"
LINKS: Final = {"#curves": "Curves", "#trials": "Trials", "#figures": "Figures", "#events": "Events"}
_NO_SCRIPT_ROWS: Final = 20
_EVENT: Final = 400
"""Characters of an event."""
_CELL: Final = "text-align:left;padding:2px 10px 2px 0;white-space:nowrap"


def report(results: SweepResults, path: str | os.PathLike[str]) -> Path:
    """Write a report of a sweep as one HTML file, which works offline; return its path.

    Args:
        results: of a sweep, also one that still runs, that failed, or that has no trial yet.
        path: the file; of a folder, ``report.html`` in it.

    The file holds plotly.js (5 MB) and all data; text of configurations, errors and logs is shown as it is, never run.
    Raises: StorageError where the file cannot be written. Runs on: driver, or anywhere that has the sweep's folder.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        target = target / FILE
    write_text(target.absolute(), page(results))
    return target.absolute()


def page(results: SweepResults) -> str:
    """Return the HTML of one sweep's report."""
    state, seen = results.record, view.Seen(results.record.trials.values())
    trials = [state.trials[trial.id] for trial in results.every_trial][-view.MOST_ROWS :]
    curves, reported = view.with_curves(state)
    metric = view.metric_of(state)
    shown, which = chosen(results)
    best = winner(state)
    best_config = {} if best is None else flatten(state.trials[best.trial].config)
    space = settings_of(results).get("space")
    head = sweep_head(state, seen, results.name, state.ended or "not ended", state.updated, space=space)
    message = {
        "head": head,
        "rows": [view.row(state, trial, state.updated) for trial in trials],
        "curves": {trial.index: view.curve_of(trial.history, metric).points() for trial in curves},
        "of": reported,
    }
    data = {
        "state": message,
        **{f"part-{name}": section for name, section in parts(results)},
        **{
            f"trial-{trial.index}": [
                *trial_blocks(trial, state.trials[trial.id], results.objectives, began(results), best_config),
                *log_block(trial),
            ]
            for trial in shown
        },
    }
    body = [
        f"<noscript>{_without_script(results, view.columns(state, seen))}</noscript>",
        asset("sweep.html"),
        f'<template id="trial-page">{asset("trial.html")}</template>',
    ]
    told = {"sweep": results.name, "parts": PARTS, "which": which}
    return _saved(results.name, body, told=told, data=data)


def sweep_head(
    state: SweepState, seen: view.Seen, name: str, standing: str, until: float | None, *, space: Any
) -> dict[str, Any]:
    """Return what a page says of a sweep as a whole.

    Its ``standing`` is in words, time counts ``until`` then, and ``space`` is the search space as in ``sweep.yaml``.
    """
    domains = [path.rpartition(".") for path in flatten(space or {})]
    numbers = ("uniform", "randint", "randn")
    lines = [(event[0], event_line(state, event)) for event in reversed(list(state.events))]
    return {
        **view.head(state, seen),
        "name": name,
        "state": standing,
        "seconds": age(state, until or 0.0),
        "even": {key: "log" not in kind for key, _, kind in domains if kind.endswith(numbers)},
        "events": [[at, view.plain(line, _EVENT)] for at, line in lines if line],
    }


def _without_script(results: SweepResults, shown: Sequence[view.Column]) -> str:
    """Return what a reader without JavaScript sees: the best configuration and the best trials."""
    said = "<p>The figures, and the details of trials, need JavaScript.</p>"
    if results.record.best is None:
        return said
    rows = [view.row(results.record, results.record.trials[trial.id]) for trial in results.top(_NO_SCRIPT_ROWS)]
    cells = [[column.of(row) for column in shown] for row in rows]
    config = _table(["best configuration", ""], list(flatten(results.best.plain_config).items()))
    return f"{said}{config}{_table([column.name for column in shown], cells)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML."""

    def line(tag: str, cells: Iterable[Any]) -> str:
        texts = ("" if one is None else f"{one:.6g}" if isinstance(one, float) else str(one) for one in cells)
        return "".join(["<tr>", *(f'<{tag} style="{_CELL}">{html.escape(text)}</{tag}>' for text in texts), "</tr>"])

    body = "".join(line("td", row) for row in rows)
    return f'<div style="overflow-x:auto"><table>{line("th", head)}{body}</table></div>'


def _saved(title: str, body: Iterable[str], *, told: dict[str, Any], data: dict[str, Any]) -> str:
    """Return a sweep's page that needs no other file: its style, its scripts with plotly's, and its data."""
    from plotly.offline import get_plotlyjs  # plotly costs most of a second

    scripts = [get_plotlyjs(), "\n".join(map(asset, SCRIPTS))]
    # A page that shows what others wrote: only these two scripts run in it, and nothing is fetched. plotly's WebGL
    # part writes functions of its own, which is what unsafe-eval lets it.
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{asset(STYLE)}</style>",
    ]
    inlined = [
        f'<script type="application/json" id="data-{name}">{_in_script(value)}</script>' for name, value in data.items()
    ]
    told = {**told, "saved": True, "readOnly": True, "colours": view.colours()}
    return frame(
        "sweep",
        title,
        LINKS,
        told,
        head=head,
        body=body,
        scripts=[*inlined, *(f"<script>{script}</script>" for script in scripts)],
    )


def frame(
    kind: str,
    title: str,
    links: Mapping[str, str],
    told: Mapping[str, Any],
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
        told: what its script is told.
        head, body, scripts: HTML, in order.
    """
    shown = "".join(f'<a href="{html.escape(where)}">{html.escape(name)}</a>' for where, name in links.items())
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}: tunelight</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        *head,
        f'</head><body data-page="{kind}" data-told="{html.escape(json.dumps(told))}">',
        f'<header><h1>{html.escape(title)}</h1><button id="theme" type="button">light / dark</button>',
        f'<nav>{shown}</nav></header><p id="trouble" role="status" hidden></p><main>',
        *body,
        f"</main><footer>tunelight, {moment(time.time())}</footer>",
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


_LIMIT_S = 180.0
"""A browser starts in seconds; one that hangs must not block its caller for ever."""
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

    Raises: ReportError for another suffix, without kaleido or a browser, where that does not answer within 180 s, or
        where the file cannot be written.
    """
    target = Path(path).expanduser().absolute()
    kind = target.suffix.lower().lstrip(".").replace("jpg", "jpeg")
    if kind not in _KINDS:
        raise ReportError(
            f"A picture is written as {', '.join(f'.{one}' for one in _KINDS)} by the file's suffix, but {str(path)!r} "
            f"has {target.suffix or 'none'!r}.{guess(kind, _KINDS)}"
        )
    if importlib.util.find_spec("kaleido") is None:
        raise ReportError(f"{target.name} cannot be drawn: kaleido is not installed. {_HOW}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _within_limit(
            figure, target, format=kind, width=width, height=height or figure.layout.height or 460, scale=scale
        )
    except TimeoutError as error:
        raise ReportError(f"{target.name} was not drawn: {error}. Try again; {_HOW}") from error
    except OSError as error:
        raise ReportError(f"{target} cannot be written: {error}.") from error
    except Exception as error:  # kaleido and its browser fail with classes of their own
        said = " ".join(str(error).split()).rstrip(".")
        raise ReportError(f"{target.name} cannot be drawn: {type(error).__name__}: {said}. {_HOW}") from error
    return target


def _within_limit(figure: Any, target: Path, **how: Any) -> None:
    """Draw in a thread, since the browser may hang. Raises: the thread's exception; TimeoutError."""
    failed: list[Exception] = []

    def draw() -> None:
        try:
            figure.write_image(target, **how)
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            failed.append(error)

    thread = threading.Thread(target=draw, name="tunelight-picture", daemon=True)
    thread.start()
    thread.join(_LIMIT_S)
    if thread.is_alive():
        raise TimeoutError(f"the browser did not answer within {_LIMIT_S:.0f} s")
    if failed:
        raise failed[0]
