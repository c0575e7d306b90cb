"""ls, show, watch: list sweeps, and show one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunelight.cli.app import command
from tunelight.cli.options import STORAGE, Columns, Json, Storage, Sweep, names_of
from tunelight.cli.printing import about_sweep, about_trial, age, print_json, print_table, shown_path, words

if TYPE_CHECKING:
    from tunelight.results import SweepResults, TrialResult

_LAST_REPORTS = 10


@command("ls runs")
def ls(
    storage: Annotated[str, typer.Argument(help="The folder of sweeps, or its URL.")] = STORAGE,
    json: Json = False,
) -> None:
    """List the sweeps in a folder, newest first."""
    from tunelight.errors import StorageError
    from tunelight.record import is_folder, list_sweeps
    from tunelight.results import SweepResults
    from tunelight.stores import shown

    if storage != STORAGE and not is_folder(storage):
        raise StorageError(f"There is no folder {storage}. Give the folder of sweeps (storage= of the sweep).")
    rows: list[dict[str, Any]] = []
    for found in list_sweeps(storage):
        row: dict[str, Any] = {"sweep": found.folder.name, "folder": shown(found.folder), "written": found.written}
        try:
            rows.append(row | about_sweep(SweepResults.load(found.folder)))
        except StorageError as error:  # one that cannot be read must not hide the others
            rows.append(row | {"error": str(error)})
    if json:
        print_json(rows)
    elif not rows:
        typer.echo(f"No sweeps in {storage}. Give the folder of sweeps (storage= of the sweep).")
    else:
        print_table(["sweep", "trials", "state", "metric", "best", "written"], [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> list[Any]:
    if "error" in row:
        return [row["sweep"], None, "unreadable", None, None, age(row["written"])]
    state = row["ended"] or ("running" if row["running"] else "cut off")
    best = row["best"]["value"] if row["best"] else None
    return [row["sweep"], row["trials"], state, row["metric"], best, age(row["written"])]


@command("show last --top 10      tunelight show last 5")
def show(
    sweep: Sweep,
    trial: Annotated[str | None, typer.Argument(help="A trial's id or number, or 'best'.")] = None,
    top: Annotated[int | None, typer.Option("--top", help="Show only the best TOP trials.", min=1)] = None,
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Show a sweep's trials, or one trial in detail."""
    results = load(sweep, storage)
    if trial is not None:
        _show_trial(results.trial(trial), json)
        return
    trials = results.trials if top is None else results.top(top)
    about = about_sweep(results)
    if json:
        print_json(about | {"trials": [about_trial(one) for one in trials]})
        return
    typer.echo(results.summary())
    if not (about["ended"] or about["running"]):
        typer.echo(f"It was cut off: no process runs it. To resume: tunelight resume {shown_path(results.folder)}")
    further = [metric for metric, _ in results.objectives[1:]]
    rows = [
        (
            one.id,
            one.state,
            one.value,
            *results.further(one).values(),
            len(one.history),
            f"{one.seconds:.0f}s",
            words(one.config),
        )
        for one in trials
    ]
    print_table(["trial", "state", results.metric or "metric", *further, "reports", "time", "configuration"], rows)


def _show_trial(trial: TrialResult, json: bool) -> None:
    about = about_trial(trial) | {"history": trial.history, "changes": trial.changes, "runs": trial.runs}
    if json:
        print_json(about)
        return
    for name in ("trial", "state", "value", "seconds", "seed", "checkpoint"):
        typer.echo(f"{name:<11} {about[name] if about[name] is not None else '-'}")
    typer.echo(f"{'config':<11} {words(trial.config)}")
    for run in trial.runs:
        git = run.get("git") or {}
        commit = f"  at {git['commit'][:12]}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else ""
        if run.get("command"):
            typer.echo(f"{'run by':<11} {' '.join(run['command'])}{commit}")
    if trial.history:
        names = [name for name in trial.history[-1] if name not in ("training_iteration", "timestamp")]
        rows = [
            [one["training_iteration"], *(one.get(name) for name in names)] for one in trial.history[-_LAST_REPORTS:]
        ]
        print_table(["report", *names], rows)
    if trial.error:
        typer.echo(f"\n{trial.error}")


@command("watch last")
def watch(sweep: Sweep, columns: Columns = None, storage: Storage = STORAGE) -> None:
    """Show the live table of a sweep that another process runs, until it ends."""
    from tunelight.record import find_sweep

    folder = find_sweep(sweep, storage)
    from tunelight import reporting

    reporting.watch(folder, columns=names_of(columns))


def load(sweep: str, storage: str) -> SweepResults:
    """Read a sweep by its path or name. Raises: StorageError."""
    from tunelight.record import find_sweep
    from tunelight.results import SweepResults

    return SweepResults.load(find_sweep(sweep, storage))
