"""The live page as HTML, four frames that the page's script fills, and the details of a trial."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from shlex import quote as shell_quote
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tunelight import stores
from tunelight.extras.report.page import LINKS, SCRIPTS, STYLE, asset, frame
from tunelight.extras.report.sections import PARTS, Block, trial_blocks
from tunelight.extras.web.watch import SweepWatch
from tunelight.record import read_sweep_file, read_trial, view
from tunelight.results import SweepResults

if TYPE_CHECKING:
    from tunelight.record import TrialState

PLOTLY: Final = "plotly.js"
STATIC: Final = (*SCRIPTS, STYLE, PLOTLY)
"""The files that a page asks for."""
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
    return frame(
        kind,
        title,
        links,
        {**told, "plotly": address(PLOTLY), "colours": view.colours()},
        head=[f'<link rel="stylesheet" href="{address(STYLE)}">', '<link rel="icon" href="data:,">'],
        body=[_NO_SCRIPT, asset(f"{kind}.html")],
        scripts=[f'<script src="{address(name)}"></script>' for name in SCRIPTS],
    )


def sweeps_page(place: str) -> str:
    """Return the page that lists the sweeps of a storage folder."""
    return _page("sweeps", "Sweeps", {}, place=place)


def sweep_page(name: str, *, read_only: bool) -> str:
    """Return the page of one sweep."""
    return _page("sweep", name, {"/": "All sweeps", **LINKS}, sweep=name, readOnly=read_only, parts=PARTS)


def compare_page(names: list[str]) -> str:
    """Return the page that compares sweeps."""
    return _page("compare", f"{len(names)} sweeps compared", {"/": "All sweeps"}, sweeps=names)


def trial_page(name: str, index: int, *, read_only: bool) -> str:
    """Return the page of one trial."""
    links = {"/": "All sweeps", f"/sweep/{quote(name, safe='')}": name, "#log": "Log"}
    return _page("trial", f"{name}: trial {index}", links, sweep=name, trial=index, readOnly=read_only)


def trial_details(watch: SweepWatch, state: TrialState) -> list[Block]:
    """Return all that is known of a trial but its log. Raises: StorageError."""
    found = read_trial(watch.folder, state.id)
    results = SweepResults(watch.folder, found, read_sweep_file(watch.folder))
    trial, own = results.every_trial[0], found.trials[state.id]
    sweep = shell_quote(stores.shown(watch.folder))
    commands = [
        f"tunelight show {sweep} {own.index}",
        f"tunelight reproduce {sweep} {own.index}",
        f"tunelight best {sweep} {own.index} --export trial-{own.index}.yaml",
    ]
    blocks = trial_blocks(trial, own, results.objectives, watch.state.started or 0.0, watch.best_config())
    return [*blocks, {"title": "Commands", "pre": "\n".join(commands)}]
