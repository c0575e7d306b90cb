"""note: write notes and tags on sweeps and trials, also while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import print_json, when
from tunelight.errors import StorageError


@command('note last "lr above 0.1 diverges" --tag good      tunelight note last/best --untag good')
def note(
    sweep: options.SweepOrTrial,
    text: Annotated[list[str] | None, typer.Argument(help="The note.")] = None,
    tags: Annotated[list[str], typer.Option("--tag", help="Add a tag, one word. Repeatable.")] = [],
    untags: Annotated[list[str], typer.Option("--untag", help="Remove a tag. Repeatable.")] = [],
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Add a note or tags to a sweep or a trial, also while it runs; with neither, print its notes and tags.

    Of a sweep, those of its trials are printed, too. `tunelight ls --tag TAG` lists the sweeps that have a tag.
    """
    from tunelight.record import Notes

    def name_of(trial: str | None) -> str:
        return f"sweep {folder.name}" if trial is None else f"trial {trial} of sweep {folder.name}"

    folder, trial = _sweep_and_trial(sweep, storage)
    notes = Notes(folder)
    if untags:
        notes.untag(untags, trial)
    if tags:
        notes.tag(tags, trial)
    if text:
        notes.add(" ".join(text), trial)
    shown = notes.all if trial is None else notes.of(trial)
    if json:
        on_trials = {} if trial is not None else {"trials": {each: notes.tags(each) for each in notes.tagged}}
        print_json({"sweep": folder.name, "trial": trial, "notes": shown, "tags": notes.tags(trial), **on_trials})
        return
    if text:
        typer.echo(f"Added a note to {name_of(trial)}.")
    changed = bool(tags or untags)
    if changed or not text:
        for tagged in [trial] if trial is not None or changed else [None, *notes.tagged]:
            typer.echo(f"{name_of(tagged)}: {', '.join(notes.tags(tagged)) or 'no tags'}")
    if text or changed:
        return
    for each in shown:
        on = "" if each.trial is None or trial is not None else f"trial {each.trial}: "
        typer.echo(f"{when(each.time)}  {on}{each.text}")
    if not shown:
        typer.echo(f"No notes on {name_of(trial)}.")


def _sweep_and_trial(given: str, storage: str) -> tuple[Path, str | None]:
    """Return a sweep's folder, and the id of the trial or None. Raises: StorageError, NoResultError."""
    from tunelight.record import find_sweep, is_folder
    from tunelight.results import SweepResults

    try:
        return find_sweep(given, storage), None
    except StorageError as error:
        sweep, _, trial = given.rstrip("/").rpartition("/")
        if not sweep:
            raise
        try:
            folder = find_sweep(sweep, storage)
        except StorageError:
            if "://" not in sweep and is_folder(sweep):  # a folder of sweeps, which has no such sweep
                raise error from None
            raise
    return folder, SweepResults.load(folder).trial(trial).id
