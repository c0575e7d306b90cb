"""note: write notes and tags on sweeps and trials, also while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunelight.cli.app import command
from tunelight.cli.options import STORAGE, Json, Storage, SweepOrTrial
from tunelight.cli.printing import print_json, when
from tunelight.errors import StorageError


@command('note last "lr above 0.1 diverges" --tag good      tunelight note last/best --untag good')
def note(
    sweep: SweepOrTrial,
    text: Annotated[list[str] | None, typer.Argument(help="The note.")] = None,
    tags: Annotated[list[str], typer.Option("--tag", help="Add a tag, one word. Repeatable.")] = [],
    untags: Annotated[list[str], typer.Option("--untag", help="Remove a tag. Repeatable.")] = [],
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Add a note or tags to a sweep or a trial, also while it runs; with neither, print its notes and tags.

    Of a sweep, those of its trials are printed, too. `tunelight ls --tag TAG` lists the sweeps that have a tag.
    """
    from tunelight.record import Notes

    folder, trial = _target(sweep, storage)
    notes = Notes(folder)
    if untags:
        notes.untag(untags, trial)
    if tags:
        notes.tag(tags, trial)
    if text:
        notes.add(" ".join(text), trial)
    found = notes.all if trial is None else notes.of(trial)
    if json:
        on_trials = {} if trial is not None else {"trials": {one: notes.tags(one) for one in notes.tagged}}
        print_json({"sweep": folder.name, "trial": trial, "notes": found, "tags": notes.tags(trial), **on_trials})
        return
    if text:
        typer.echo(f"Added a note to {_called(folder, trial)}.")
    changed = bool(tags or untags)
    if changed or not text:
        for place in [trial] if trial is not None or changed else [None, *notes.tagged]:
            typer.echo(f"{_called(folder, place)}: {', '.join(notes.tags(place)) or 'no tags'}")
    if text or changed:
        return
    for one in found:
        on = "" if one.trial is None or trial is not None else f"trial {one.trial}: "
        typer.echo(f"{when(one.time)}  {on}{one.text}")
    if not found:
        typer.echo(f"No notes on {_called(folder, trial)}.")


def _target(given: str, storage: str) -> tuple[Path, str | None]:
    """Return the folder of the sweep that is meant, and the trial's id or None. Raises: StorageError, NoResultError."""
    from tunelight.record import find_sweep, is_folder
    from tunelight.results import SweepResults

    sweep, slash, trial = given.rstrip("/").rpartition("/")
    try:
        return find_sweep(given, storage), None
    except StorageError:
        if not slash or not sweep or ("://" not in sweep and is_folder(sweep) and not _is_sweep(sweep, storage)):
            raise
    folder = find_sweep(sweep, storage)
    return folder, SweepResults.load(folder).trial(trial).id


def _is_sweep(given: str, storage: str) -> bool:
    from tunelight.record import find_sweep

    try:
        find_sweep(given, storage)
    except StorageError:
        return False
    return True


def _called(folder: Path, trial: str | None) -> str:
    return f"sweep {folder.name}" if trial is None else f"trial {trial} of sweep {folder.name}"
