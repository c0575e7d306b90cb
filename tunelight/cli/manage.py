"""rm: delete sweeps that nobody runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import print_json, size
from tunelight.errors import NoResultError, SettingsError, StorageError


@command("rm last      tunelight rm digits-1 digits-2 --yes      tunelight rm last --checkpoints")
def rm(
    sweeps: options.Sweeps,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints",
            help="Delete only checkpoints, and keep record and logs. Those of the best trial stay, and those of trials "
            "that a resumed sweep would continue.",
        ),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="With --checkpoints: delete those of every trial, of the best one, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Delete sweeps, with their trials' checkpoints and logs, or only checkpoints; asks before it does.

    A sweep that is running is not deleted, nor is a folder that is no sweep. Links in a sweep's folder are deleted, but
    not what they point to.
    """
    from tunelight.extras.upkeep import check_deletable
    from tunelight.record import find_sweep, leased
    from tunelight.stores import shown

    if every and not checkpoints:
        raise SettingsError("--all says which checkpoints to delete. Give --checkpoints too, or leave --all out.")
    named = (find_sweep(sweep, storage) for sweep in sweeps)
    # A path that leads through a folder of the sweep would not outlive it.
    folders = list(dict.fromkeys(folder.resolve() if ".." in folder.parts else folder for folder in named))
    for folder in folders:  # before the first is deleted
        if not checkpoints:
            check_deletable(folder)
        with leased(folder, to="deleted"):
            pass
    if not yes and not sys.stdin.isatty():
        raise SettingsError(
            "rm asks before it deletes anything, but standard input is no terminal, so nobody can answer. Give --yes "
            "to delete without a question."
        )
    done = []
    for folder in folders:
        deletion = _of_checkpoints(folder, every=every) if checkpoints else _of_sweep(folder)
        agreed = bool(deletion.size) and (yes or _confirmed(deletion.question, json))
        if agreed:
            deletion.carry_out()
        freed = deletion.size if agreed else 0
        done.append({"sweep": folder.name, "folder": shown(folder), "deleted": agreed, "bytes": freed})
        if not json:
            kept = (
                f"Kept sweep {folder.name}." if deletion.size else f"Sweep {folder.name} has no checkpoints to delete."
            )
            typer.echo(deletion.outcome if agreed else kept)
    if json:
        print_json(done)


def _confirmed(question: str, json: bool) -> bool:
    try:
        return typer.confirm(question, err=json)
    except typer.Abort as error:  # Ctrl-C, or the terminal was closed
        raise KeyboardInterrupt from error


class _Deletion(NamedTuple):
    """What is to be deleted: its size in bytes (0: nothing), and what to say before and after."""

    size: int
    question: str
    outcome: str
    carry_out: Callable[[], Any]


def _of_sweep(folder: Path) -> _Deletion:
    from tunelight.extras.upkeep import delete_sweep, size_of
    from tunelight.results import SweepResults

    try:
        count = len(SweepResults.load(folder))
        trials = f"{count} trial{'s' * (count != 1)}"
    except StorageError:
        trials = "its record cannot be read"
    bytes_held = max(1, size_of(folder))
    what = f"{trials}, {size(bytes_held)}"
    return _Deletion(
        bytes_held,
        f"Delete sweep {folder.name} ({what})?",
        f"Deleted sweep {folder.name} ({what}).",
        lambda: delete_sweep(folder),
    )


def _of_checkpoints(folder: Path, *, every: bool) -> _Deletion:
    """Return the deletion of a sweep's checkpoints: all of them, or those that are of no more use."""
    from tunelight.extras.upkeep import checkpoints_of, delete_checkpoints, size_of
    from tunelight.record import INTERRUPTED, TERMINAL
    from tunelight.results import SweepResults

    results = SweepResults.load(folder)
    best = _best(results)
    ended = TERMINAL - {INTERRUPTED}
    trials = [trial for trial in results.every_trial if every or (trial.id != best and trial.state in ended)]
    paths = [trial.path for trial in trials]
    sizes = [size_of(path) for path in checkpoints_of(folder, paths)]
    count = sum(map(bool, sizes))
    what = f"{count} trial{'s' * (count != 1)} of sweep {folder.name} ({size(sum(sizes))})"
    lost = sum(trial.state not in ended for trial in trials)
    more = f" {lost} of its trials were cut off, and could not continue." if lost else ""
    return _Deletion(
        sum(sizes),
        f"Delete the checkpoints of {what}?{more}",
        f"Deleted the checkpoints of {what}.",
        lambda: delete_checkpoints(folder, paths),
    )


def _best(results: Any) -> str | None:
    """Return the id of the trial whose model one would load: the best, or the failed one that was ahead."""
    try:
        return str(results.best.id)
    except NoResultError:
        return None if results.ahead is None else str(results.ahead.id)
