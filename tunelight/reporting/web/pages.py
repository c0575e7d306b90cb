"""The live page as HTML: four frames that the page's script fills, and a trial's part, which is made here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from shlex import quote as shell_quote
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tunelight import stores
from tunelight.record import METRICS_FILE, read_sweep_file, read_trial
from tunelight.reporting.markup import asset, frame, safe, table, td
from tunelight.reporting.page import HEADINGS
from tunelight.reporting.trial_sections import curve, standing, trial_parts
from tunelight.reporting.web.watch import SweepWatch, colours
from tunelight.results import SweepResults
from tunelight.results.figures.data import judged_by, metrics_of

if TYPE_CHECKING:
    from tunelight.record import TrialState

FIGURES: Final = {**HEADINGS, "how": "How it was run"}
"""What is drawn of a sweep, with its heading until then."""
SCRIPTS: Final = ("page.js", "live.js", "sweep.js")
STYLES: Final = ("page.css", "live.css")
PLOTLY: Final = "plotly.js"
_MOST_CURVES: Final = 12
_MOST_CHECKPOINTS: Final = 50
_NO_SCRIPT: Final = (
    "<noscript><p>This page needs JavaScript. In a terminal, <code>tunelight show --follow</code> and "
    "<code>tunelight show</code> show a sweep.</p></noscript>"
)


@cache
def static(name: str) -> bytes:
    """Return one of the files that a page asks for."""
    if name == PLOTLY:
        return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return asset(name).encode()


@cache
def address(name: str) -> str:
    """Return where a file is, which changes with its content, so that browsers may keep it."""
    return f"/static/{hashlib.sha256(static(name)).hexdigest()[:12]}/{name}"


def _page(kind: str, title: str, links: Mapping[str, str], **told: Any) -> str:
    """Return a page; ``told`` is what its script is told."""
    head = [f'<link rel="stylesheet" href="{address(name)}">' for name in STYLES]
    head.append('<link rel="icon" href="data:,">')
    facts = safe(json.dumps({**told, "plotly": address(PLOTLY), "colours": colours()}))
    return frame(
        title,
        links,
        head=head,
        body=[_NO_SCRIPT, '<p id="trouble" role="status" hidden></p>', asset(f"{kind}.html")],
        scripts=[f'<script src="{address(name)}"></script>' for name in SCRIPTS],
        attributes=f' data-page="{kind}" data-told="{facts}"',
    )


def sweeps_page(place: str) -> str:
    """Return the page that lists the sweeps of a storage folder."""
    return _page("sweeps", "Sweeps", {}, place=place)


def sweep_page(name: str, *, read_only: bool) -> str:
    """Return the page of one sweep."""
    parts = {"curves": "Curves", "trials": "Trials", "rungs": "Rungs", "events": "Events", "figures": "Figures"}
    links = {"/": "All sweeps", **{f"#{key}": heading for key, heading in parts.items()}}
    return _page("sweep", name, links, sweep=name, readOnly=read_only, figures=FIGURES)


def compare_page(names: list[str]) -> str:
    """Return the page that compares sweeps."""
    return _page("compare", f"{len(names)} sweeps compared", {"/": "All sweeps"}, sweeps=names)


def trial_page(name: str, index: int, *, read_only: bool) -> str:
    """Return the page of one trial."""
    links = {"/": "All sweeps", f"/sweep/{quote(name, safe='')}": name, "#log": "Log"}
    return _page("trial", f"{name}: trial {index}", links, sweep=name, trial=index, readOnly=read_only)


def trial_body(watch: SweepWatch, state: TrialState) -> str:
    """Return all that is known of a trial but its log. Raises: StorageError."""
    found = read_trial(watch.folder, state.id)
    results = SweepResults(watch.folder, found, read_sweep_file(watch.folder))
    trial, own = results.every_trial[0], found.trials[state.id]
    begin = watch.state.started or 0.0
    said = f"<p>Trial {trial.index} {safe(standing(trial, own))}.</p>"
    return "\n".join(
        [
            said,
            *_curves(results),
            *trial_parts(trial, own, begin, watch.best_config()),
            *_files(watch, own),
        ]
    )


def _curves(results: SweepResults) -> Iterator[str]:
    trial = results.every_trial[0]
    metric, mode = judged_by(results)
    modes = {**dict(results.objectives), metric: mode}
    names = list(dict.fromkeys([metric, *metrics_of(results)]))
    for name in names[:_MOST_CURVES]:
        yield curve(trial, name, modes.get(name, "max" if "acc" in name else "min"))
    if len(names) > _MOST_CURVES:
        left = ", ".join(names[_MOST_CURVES:])
        yield f"<p>Without a curve here: {safe(left[:400])}. All are in {METRICS_FILE}.</p>"


def _files(watch: SweepWatch, own: TrialState) -> Iterator[str]:
    """Yield its checkpoints, and the commands that show, reproduce and export it."""
    if own.checkpoints:
        rows = [
            [td(one.get("training_iteration")), td(one.get("value")), td(one.get("size")), td(one["path"])]
            for one in own.checkpoints[-_MOST_CHECKPOINTS:]
        ]
        yield f"<h4>Checkpoints</h4>{table(['report', 'value', 'bytes', 'path'], rows)}"
    sweep = shell_quote(stores.shown(watch.folder))
    lines = [
        f"tunelight show {sweep} {own.index}",
        f"tunelight reproduce {sweep} {own.index}",
        f"tunelight best {sweep} {own.index} --export trial-{own.index}.yaml",
    ]
    yield f"<h4>Commands</h4><pre>{safe(chr(10).join(lines))}</pre>"
