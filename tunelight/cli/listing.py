"""ls and rm: list sweeps, some of them or all, in an order; delete those that nobody runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import about_sweep, age, print_json, print_table, size
from tunelight.errors import NoResultError, SettingsError, StorageError, first_of, unknown

if TYPE_CHECKING:
    from tunelight.record import Found


_STATES: Final = ("running", "finished", "stopped", "interrupted", "cut-off", "time-budget", "gave-up", "unreadable")
_MOST_NAMES: Final = 8
_PATTERN: Final = frozenset("*?[")
_NONE: Final = "Give the folder of sweeps (storage= of the sweep)"


def _best(row: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return what a row is sorted by with --sort best: sweeps of the same metric together, their best first."""
    if "error" in row or row["best"] is None:
        return None
    value = row["best"]["value"]
    return str(row["metric"]), -value if row["mode"] == "max" else value


_ORDERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "name": lambda row: row["sweep"],
    "time": lambda row: -row["written"],
    "best": _best,
    "trials": lambda row: -row["trials"] if "trials" in row else None,
}
"""What rows are sorted by, ascending; those with None come last."""


@command("ls --sort best                 tunelight ls 'digits-*' --state finished")
def ls(
    where: Annotated[
        str | None,
        typer.Argument(help="The folder of sweeps, or its URL; or a pattern of names in --storage: 'digits-*'."),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort", help="name, time (newest first), best (best value first, by metric), or trials (most first)."
        ),
    ] = "time",
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    state: Annotated[str | None, typer.Option("--state", help=f"Only sweeps that are: {', '.join(_STATES)}.")] = None,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """List sweeps, newest first, or as --sort says."""
    if sort not in _ORDERS:
        raise SettingsError(unknown("There is no order", sort, _ORDERS))
    if state is not None and state not in _STATES:
        raise SettingsError(unknown("There is no state", state, _STATES))
    place, found = _found(where, storage)
    rows = [_row(one) for one in found]
    if state is not None:
        rows = [row for row in rows if row["state"] == state.replace("-", " ")]
    rows = _sorted(rows, _ORDERS[sort], reverse=reverse)
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
    fitting = [one for one in found if fnmatchcase(one.folder.name, pattern)]
    if not fitting and _PATTERN & set(pattern):
        names = first_of([one.folder.name for one in found], _MOST_NAMES) or "none"
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
    from tunelight.stores import shown

    row: dict[str, Any] = {"sweep": found.folder.name, "folder": shown(found.folder), "written": found.written}
    try:
        row |= about_sweep(SweepResults.load(found.folder))
    except StorageError as error:  # one that cannot be read must not hide the others
        return row | {"error": str(error), "state": "unreadable"}
    return row | {"state": row["ended"] or ("running" if row["running"] else "cut off")}


def _sorted(
    rows: list[dict[str, Any]], order: Callable[[dict[str, Any]], Any], *, reverse: bool
) -> list[dict[str, Any]]:
    """Sort rows; those that have nothing to sort by come last, whichever way round."""
    keys = [(order(row), row) for row in rows]
    first = sorted((pair for pair in keys if pair[0] is not None), key=lambda pair: pair[0], reverse=reverse)
    return [row for _, row in first] + [row for key, row in keys if key is None]


def _line(row: dict[str, Any]) -> list[Any]:
    best = row["best"]["value"] if row.get("best") else None
    return [row["sweep"], row.get("trials"), row["state"], row.get("metric"), best, age(row["written"])]


# --- rm: delete sweeps that nobody runs -------------------------------------------------------------------


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
    best = _to_keep(results)
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


def _to_keep(results: Any) -> str | None:
    """Return the id of the trial whose model one would load: the best, or the failed one that was ahead."""
    try:
        return str(results.best.id)
    except NoResultError:
        return None if results.ahead is None else str(results.ahead.id)
