"""rm: delete sweeps that nobody runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tunelight.cli.app import command
from tunelight.cli.options import STORAGE, Json, Storage, Sweeps
from tunelight.cli.printing import print_json, size
from tunelight.errors import NoResultError, SettingsError, StorageError, first_of

_MOST_NAMES: Final = 8


@command("rm last      tunelight rm digits-1 digits-2 --yes      tunelight rm last --checkpoints")
def rm(
    sweeps: Sweeps,
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
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Delete sweeps, with their trials' checkpoints and logs, or only checkpoints; asks before it does.

    A sweep that is running is not deleted, nor is a folder that is no sweep. Links in a sweep's folder are deleted, but
    not what they point to.
    """
    from tunelight.record import locked
    from tunelight.record.upkeep import check_deletable
    from tunelight.stores import shown

    if every and not checkpoints:
        raise SettingsError("--all says which checkpoints to delete. Give --checkpoints too, or leave --all out.")
    folders = list(dict.fromkeys(_folder(sweep, storage) for sweep in sweeps))
    for folder in folders:  # before the first is deleted
        if not checkpoints:
            check_deletable(folder)
        with locked(folder, to="deleted"):
            pass
    if not yes and not sys.stdin.isatty():
        raise SettingsError(
            "rm asks before it deletes anything, but standard input is no terminal, so nobody can answer. Give --yes "
            "to delete without a question."
        )
    done = []
    for folder in folders:
        one = _Clearing(folder, every=every) if checkpoints else _Deletion(folder)
        agreed = bool(one.size) and (yes or _asked(one.question, json))
        if agreed:
            one.carry_out()
        freed = one.size if agreed else 0
        done.append({"sweep": folder.name, "folder": shown(folder), "deleted": agreed, "bytes": freed})
        if not json:
            typer.echo(one.outcome if agreed else f"Kept sweep {folder.name}." if one.size else one.nothing)
    if json:
        print_json(done)


def _folder(sweep: str, storage: str) -> Path:
    """Return the folder of a sweep, by a path that stays valid while what is in it is deleted. Raises: StorageError."""
    from tunelight.record import find_sweep

    found = find_sweep(sweep, storage)
    return found.resolve() if ".." in found.parts else found


def _asked(question: str, json: bool) -> bool:
    try:
        return typer.confirm(question, err=json)
    except typer.Abort as error:  # Ctrl-C, or the terminal was closed
        raise KeyboardInterrupt from error


class _Deletion:
    """The deletion of a sweep: what to ask before, and what to say after."""

    def __init__(self, folder: Path) -> None:
        from tunelight.record.upkeep import size_of, started_from

        self._folder = folder
        self.size = max(1, size_of(folder))
        self.nothing = ""
        starts = started_from(folder)
        what = f"{_trials(folder)}, {size(self.size)}"
        later = f" {_warm_started(starts)}, and cannot be resumed without it." if starts else ""
        self.question = f"Delete sweep {folder.name} ({what})?{later}"
        self.outcome = f"Deleted sweep {folder.name} ({what}).{later}"

    def carry_out(self) -> None:
        """Delete it. Raises: StorageError."""
        from tunelight.record.upkeep import delete_sweep

        delete_sweep(self._folder)


class _Clearing:
    """The deletion of a sweep's checkpoints: all of them, or those that are of no more use."""

    def __init__(self, folder: Path, *, every: bool) -> None:
        from tunelight.record import INTERRUPTED, TERMINAL
        from tunelight.record.upkeep import checkpoints_of, size_of
        from tunelight.results import SweepResults

        results = SweepResults.load(folder)
        best = _best(results)
        ended = TERMINAL - {INTERRUPTED}
        gone = [one for one in results.every_trial if every or (one.id != best and one.state in ended)]
        self._folder, self._trials = folder, [one.path for one in gone]
        sizes = [size_of(path) for path in checkpoints_of(folder, self._trials)]
        self.size = sum(sizes)
        went = sum(bool(each) for each in sizes)
        what = f"{went} trial{'s' * (went != 1)} of sweep {folder.name} ({size(self.size)})"
        lost = sum(one.state not in ended for one in gone)
        more = f" {lost} of its trials were cut off, and could not continue." if lost else ""
        self.question = f"Delete the checkpoints of {what}?{more}"
        self.outcome = f"Deleted the checkpoints of {what}."
        self.nothing = f"Sweep {folder.name} has no checkpoints to delete."

    def carry_out(self) -> None:
        """Delete them. Raises: StorageError."""
        from tunelight.record.upkeep import delete_checkpoints

        delete_checkpoints(self._folder, self._trials)


def _best(results: Any) -> str | None:
    """Return the id of the trial whose model one would load: the best, or the failed one that was ahead."""
    try:
        return str(results.best.id)
    except NoResultError:
        return None if results.ahead is None else str(results.ahead.id)


def _trials(folder: Path) -> str:
    from tunelight.results import SweepResults

    try:
        count = len(SweepResults.load(folder))
    except StorageError:
        return "its record cannot be read"
    return f"{count} trial{'s' * (count != 1)}"


def _warm_started(names: list[str]) -> str:
    are = f"Sweep {names[0]} was" if len(names) == 1 else f"Sweeps {first_of(names, _MOST_NAMES)} were"
    return f"{are} warm-started from it"
