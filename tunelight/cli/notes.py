"""note, tag: write notes and tags on sweeps and trials, also while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tunelight.cli.app import command
from tunelight.cli.options import STORAGE, Json, Storage, SweepOrTrial
from tunelight.cli.printing import print_json, when
from tunelight.errors import SettingsError, StorageError


@command('note last "lr above 0.1 diverges"      tunelight note last/best      tunelight note last')
def note(
    sweep: SweepOrTrial,
    text: Annotated[list[str] | None, typer.Argument(help="The note. Without one, the notes are printed.")] = None,
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Add a note to a sweep or a trial, also while it runs; without a text, print its notes.

    Of a sweep, the notes on its trials are printed, too.
    """
    from tunelight.record import Notes

    folder, trial = _target(sweep, storage)
    notes = Notes(folder)
    if text:
        notes.add(" ".join(text), trial)
    found = notes.all if trial is None else notes.of(trial)
    if json:
        print_json(found)
    elif text:
        typer.echo(f"Added a note to {_called(folder, trial)}.")
    elif not found:
        typer.echo(f"No notes on {_called(folder, trial)}.")
    else:
        for one in found:
            on = "" if one.trial is None or trial is not None else f"trial {one.trial}: "
            typer.echo(f"{when(one.time)}  {on}{one.text}")


@command("tag last good baseline      tunelight tag last/best keep      tunelight tag last good --remove")
def tag(
    sweep: SweepOrTrial,
    tags: Annotated[
        list[str] | None, typer.Argument(help="Tags, each one word. Without any, the tags are printed.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove these tags.")] = False,
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Add tags to a sweep or a trial, also while it runs, or remove some; without any, print its tags.

    Of a sweep, the tags of its trials are printed, too. `tunelight ls --tag TAG` lists the sweeps that have it.
    """
    from tunelight.record import Notes

    if remove and not tags:
        raise SettingsError("--remove is given without tags. Name those to remove: tunelight tag last good --remove.")
    folder, trial = _target(sweep, storage)
    notes = Notes(folder)
    (notes.untag if remove else notes.tag)(tags or (), trial)
    places = [trial] if trial is not None or tags else [None, *notes.tagged]
    if json:
        answer: dict[str, Any] = {"sweep": folder.name, "trial": trial, "tags": notes.tags(trial)}
        print_json(answer | ({} if trial is not None else {"trials": {one: notes.tags(one) for one in notes.tagged}}))
        return
    for place in places:
        typer.echo(f"{_called(folder, place)}: {', '.join(notes.tags(place)) or 'no tags'}")


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
