"""stop, pause, enqueue, branch, set: commands to a sweep that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.overrides import read_sets
from tunelight.cli.printing import print_answer
from tunelight.errors import SettingsError


def _attached(sweep: str, storage: str) -> Any:
    from tunelight.sweep.attach import attach

    return attach(sweep, storage)


@command("stop last 3      tunelight stop last")
def stop(
    sweep: options.Sweep,
    trial: Annotated[str | None, typer.Argument(help="A trial's id or number, or 'best'.")] = None,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Stop a trial of a sweep that runs, or the sweep.

    A trial ends at once and keeps its reports. A sweep that was stopped can be resumed.
    """
    print_answer(_attached(sweep, storage).stop(trial), sweep, as_json=json)


@command("pause last")
def pause(sweep: options.Sweep, storage: options.Storage = options.STORAGE, json: options.Json = False) -> None:
    """Pause a sweep that runs, until it is resumed.

    No trial begins, and running ones are paused at their next report, with a checkpoint.
    """
    print_answer(_attached(sweep, storage).pause(), sweep, as_json=json)


@command("enqueue last model.lr=0.01 model.hidden=64")
def enqueue(
    sweep: options.Sweep,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="The configuration: keys and their values.")],
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Try a configuration next in a sweep that runs, as one more trial."""
    print_answer(_attached(sweep, storage).enqueue(read_sets(values)), sweep, as_json=json)


@command("branch last 3 model.lr=0.005      tunelight branch last best")
def branch(
    sweep: options.Sweep,
    trial: Annotated[str, typer.Argument(help="The trial to begin with: its id or number, or 'best'.")],
    values: Annotated[list[str], typer.Argument(metavar="[KEY=VALUE]...", help="What is to change, if anything.")] = [],
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Train one more trial in a sweep that runs, which begins with the newest checkpoint of another one.

    Its weights, optimizers and epochs are the other's; what is to change is applied as population-based training does.
    No scheduler stops it.

    Experimental.
    """
    print_answer(_attached(sweep, storage).branch(trial, read_sets(values)), sweep, as_json=json)


@command("set last max-concurrent=2 num-samples=100      tunelight set last 3 workers=4")
def set(  # noqa: A001 - the command's name
    sweep: options.Sweep,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="[TRIAL] NAME=VALUE",
            help="New values: max-concurrent=2 (null: as many as fit), max-workers=8, num-samples=100; or a trial and "
            "workers=4.",
        ),
    ] = [],
    max_workers: Annotated[
        int | None, typer.Option("--max-workers", min=0, help="Workers of all trials together; 0: all trials wait.")
    ] = None,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Change a sweep that runs: trials at a time, workers and trials in all, or an elastic trial's workers.

    Trials that are too many for the workers leave with a checkpoint, and go on when there are more again.
    """
    trial = values[0] if values and "=" not in values[0] else None
    changes = {name.replace("-", "_"): value for name, value in read_sets(values[trial is not None :]).items()}
    changes |= options.given(max_workers=max_workers)
    attached = _attached(sweep, storage)
    if trial is not None and list(changes) != ["workers"]:
        raise SettingsError(f"Of a trial only workers can be set (tunelight set {sweep} {trial} workers=4).")
    answer = attached.set(**changes) if trial is None else attached.resize(trial, changes["workers"])
    print_answer(answer, sweep, as_json=json)


# --- mcp: sweeps for programs that speak the Model Context Protocol -------------------------------


@command("mcp ~/experiments")
def mcp(
    folder: Annotated[
        Path, typer.Argument(help="Sweeps are started from spaces below it, and files written below it.")
    ] = Path(),
    storage: Annotated[
        str | None, typer.Option("--storage", help="The folder of sweeps. Default: tunelight_runs in FOLDER.")
    ] = None,
) -> None:
    """Serve sweeps to a program over standard input and output, by the Model Context Protocol, until it hangs up.

    Its tools check, plan, run, watch and steer sweeps, and read their results. It needs tunelight[mcp].

    Experimental.
    """
    if not folder.is_dir():
        raise SettingsError(f"There is no folder {folder}. Give the one that holds your search spaces.")
    try:
        from tunelight.extras.mcp.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise SettingsError("The package mcp is missing. Install it: pip install 'tunelight[mcp]'") from error
    serve(folder, storage or str(folder.resolve() / options.STORAGE))
