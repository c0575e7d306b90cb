"""ls: list sweeps, some of them or all, in an order."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import about_sweep, age, print_json, print_table
from tunelight.errors import SettingsError, StorageError, first_of, unknown

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
