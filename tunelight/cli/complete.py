"""What the shell completes: names of sweeps, ids of trials, files, and the choices of options.

A shell asks at each press of the Tab key, so nothing here imports Ray, torch or a searcher's library. Nothing fails,
either: what cannot be read completes nothing.
"""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import typer

SCHEDULERS: Final = ("asha", "elastic_asha", "gang_pbt", "fifo")
"""tunelight's; the modules that know them import Ray Tune. Ray's own are valid, too."""
SEARCHERS: Final = ("random", "grid", "auto", "tpe", "gp", "cmaes", "sobol", "qmc", "nsgaii", "nsgaiii")
"""The modules that know them import Optuna."""
_STORAGE: Final = "tunelight_runs"
_RECORD: Final = "record.jsonl"
"""Importing the room `record` for its names and functions would take as long as all the rest."""

F = TypeVar("F", bound=Callable[..., list[str]])


def silently(function: F) -> F:
    """Make a completion answer nothing where it fails: its error would be printed into the user's command line."""

    @functools.wraps(function)
    def complete(*args: Any, **kwargs: Any) -> list[str]:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - see above
            return []

    return complete  # type: ignore[return-value]


def choices(*values: str) -> Callable[[str], list[str]]:
    """Return a completion of one of ``values``."""

    def complete(incomplete: str) -> list[str]:
        return _starting(values, incomplete)

    return complete


def _starting(values: Iterable[str], incomplete: str) -> list[str]:
    return [value for value in dict.fromkeys(values) if value.startswith(incomplete)]


@silently
def sweeps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a sweep in --storage, newest first."""
    return _starting(["last", *(folder.name for folder in _folders(ctx))], incomplete)


@silently
def trials(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a trial of the sweep that stands before it."""
    return _starting(_trial_ids(ctx, str(ctx.params.get("sweep") or "last")), incomplete)


@silently
def sweeps_and_trials(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete SWEEP, and after a slash SWEEP/TRIAL."""
    sweep, slash, _ = incomplete.rpartition("/")
    if not slash:
        return sweeps(ctx, incomplete)
    return _starting([f"{sweep}/{trial}" for trial in _trial_ids(ctx, sweep)], incomplete)


@silently
def tags(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a tag that some sweep in --storage, or a trial of it, has."""
    from tunelight.record import Notes

    known: list[str] = []
    for folder in _folders(ctx):
        notes = Notes(folder)
        for trial in (None, *notes.tagged):
            known += notes.tags(trial)
    return _starting(sorted(set(known)), incomplete)


@silently
def files(incomplete: str) -> list[str]:
    """Complete the path of a YAML file, or the name of a search space that comes with tunelight."""
    from tunelight.space import shipped

    here = {path for end in ("yaml", "yml") for path in glob.glob(f"{glob.escape(incomplete)}*.{end}")}  # noqa: PTH207
    return [*sorted(here), *_starting(shipped.names(), incomplete)]


@silently
def settings(incomplete: str) -> list[str]:
    """Complete NAME= of a setting, with its value where there are few."""
    from tunelight.settings import SETTINGS

    few = {"scheduler": SCHEDULERS, "searcher": SEARCHERS, "mode": ("min", "max")}
    found: list[str] = []
    for name, setting in SETTINGS.items():
        values: Iterable[Any] = few.get(name) or setting.json.get("enum") or ()
        found += [f"{name}={value}" for value in values] or [f"{name}="]
    return _starting(found, incomplete)


@silently
def formats(incomplete: str) -> list[str]:
    """Complete a format of an exported trial."""
    from tunelight.results import FORMATS

    return _starting(FORMATS, incomplete)


def _folders(ctx: typer.Context) -> list[Path]:
    """Return the folders of the sweeps in --storage, newest first; none of a store, for which no shell should wait."""
    storage = str(ctx.params.get("storage") or _STORAGE)
    if "://" in storage:
        return []
    records = Path(storage).expanduser().glob(f"*/{_RECORD}")
    return [path.parent for path in sorted(records, key=lambda path: -path.stat().st_mtime)]


def _trial_ids(ctx: typer.Context, sweep: str) -> list[str]:
    """Return the ids by the trials' folders: a long record takes seconds to read."""
    given, known = Path(sweep).expanduser(), _folders(ctx)
    found = [given] if (given / _RECORD).is_file() else [folder for folder in known if folder.name == sweep]
    if not found and sweep == "last":
        found = known[:1]
    ids = [trial.name.removeprefix("trial_") for folder in found[:1] for trial in folder.glob("trial_*")]
    return ["best", *sorted(ids)] if ids else []
