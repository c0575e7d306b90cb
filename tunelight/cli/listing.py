"""ls and rm: list sweeps, some of them or all, the newest first; delete those that nobody runs."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import about_sweep, age, print_json, print_table, size
from tunelight.errors import SettingsError, StorageError, first_of, refuse_unknown
from tunelight.stores import shown

if TYPE_CHECKING:
    from tunelight.record import Found


_STATES: Final = ("running", "finished", "stopped", "interrupted", "cut-off", "time-budget", "gave-up", "unreadable")
_MOST_NAMES: Final = 8
_PATTERN: Final = frozenset("*?[")
_NONE: Final = "Give the folder of sweeps (storage= of the sweep)"


@command("ls --state running             tunelight ls 'digits-*' --state finished")
def ls(
    where: Annotated[
        str | None,
        typer.Argument(help="The folder of sweeps, or its URL; or a pattern of names in --storage: 'digits-*'."),
    ] = None,
    state: Annotated[str | None, typer.Option("--state", help=f"Only sweeps that are: {', '.join(_STATES)}.")] = None,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """List sweeps, newest first."""
    refuse_unknown("There is no state", [] if state is None else [state], _STATES)
    place, found = _found(where, storage)
    rows = [_row(sweep) for sweep in found]
    if state is not None:
        rows = [row for row in rows if row["state"] == state.replace("-", " ")]
    if json:
        print_json(rows)
    elif not found:
        typer.echo(f"No sweeps in {place}. {_NONE}.")
    elif not rows:
        typer.echo(f"None of {len(found)} sweeps in {place} is such a one. Leave --state out to see them.")
    else:
        print_table(["sweep", "trials", "state", "metric", "best", "written"], [_line(row) for row in rows])


def _found(where: str | None, storage: str) -> tuple[str, list[Found]]:
    """Return the storage that is meant, and the sweeps in it whose name fits. Raises: StorageError."""
    from tunelight.record import is_folder, list_sweeps

    place, pattern = storage, None
    if where is not None and ("://" in where or is_folder(where)):
        place = where
    elif where is not None:
        parent, slash, pattern = where.rpartition("/")
        place = (parent or slash) if slash else storage
        if slash and not _PATTERN & set(pattern):
            raise StorageError(f"There is no folder {where}. {_NONE}.")
    if place != options.STORAGE and not is_folder(place):
        raise StorageError(f"There is no folder {place}. {_NONE}.")
    found = list_sweeps(place)
    if pattern is None:
        return place, found
    fitting = [sweep for sweep in found if fnmatchcase(sweep.folder.name, pattern)]
    if not fitting and _PATTERN & set(pattern):
        names = first_of([sweep.folder.name for sweep in found], _MOST_NAMES) or "none"
        raise StorageError(f"No sweep in {place} has a name like {pattern!r}. There are: {names}.")
    if not fitting:
        raise StorageError(
            f"There is no folder {where}, and no sweep in {place} has such a name. {_NONE}, or a pattern of names: "
            "'digits-*'."
        )
    return place, fitting


def _row(found: Found) -> dict[str, Any]:
    """Return a sweep as JSON has it."""
    from tunelight.results import SweepResults

    row: dict[str, Any] = {"sweep": found.folder.name, "folder": shown(found.folder), "written": found.written}
    try:
        row |= about_sweep(SweepResults.load(found.folder))
    except StorageError as error:  # one that cannot be read must not hide the others
        return row | {"error": str(error), "state": "unreadable"}
    return row | {"state": row["ended"] or ("running" if row["running"] else "cut off")}


def _line(row: dict[str, Any]) -> list[Any]:
    best = row["best"]["value"] if row.get("best") else None
    return [row["sweep"], row.get("trials"), row["state"], row.get("metric"), best, age(row["written"])]


# --- rm: delete sweeps that nobody runs -------------------------------------------------------------------


@command("rm last                        tunelight rm digits-1 digits-2 --yes")
def rm(
    sweeps: options.Sweeps,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Delete sweeps, with their trials' checkpoints and logs; asks before it does.

    A sweep that is running is not deleted, nor is a folder that is no sweep. Links in a sweep's folder are deleted, but
    not what they point to.
    """
    from tunelight.extras.upkeep import check_deletable, delete_sweep, size_of
    from tunelight.record import find_sweep, leased

    named = (find_sweep(sweep, storage) for sweep in sweeps)
    # A path that leads through a folder of the sweep would not outlive it.
    folders = list(dict.fromkeys(folder.resolve() if ".." in folder.parts else folder for folder in named))
    for folder in folders:  # before the first is deleted
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
        held = size_of(folder)
        what = f"sweep {folder.name} ({_trials_of(folder)}, {size(held)})"
        try:
            agreed = yes or typer.confirm(f"Delete {what}?", err=json)
        except typer.Abort as error:  # Ctrl-C, or the terminal was closed
            raise KeyboardInterrupt from error
        if agreed:
            delete_sweep(folder)
        done.append({"sweep": folder.name, "folder": shown(folder), "deleted": agreed, "bytes": held if agreed else 0})
        if not json:
            typer.echo(f"Deleted {what}." if agreed else f"Kept sweep {folder.name}.")
    if json:
        print_json(done)


def _trials_of(folder: Path) -> str:
    from tunelight.results import SweepResults
    from tunelight.results.trial import counted

    try:
        return counted(len(SweepResults.load(folder)), "trial")
    except StorageError:
        return "its record cannot be read"
