"""stop, enqueue, branch, set: commands to a sweep that runs."""

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
    from tunelight.extras.attach import attach

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


@command("set last max-concurrent=2 num-samples=100")
def set(  # noqa: A001 - the command's name
    sweep: options.Sweep,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE", help="New values: max-concurrent=2 (null: as many as fit), num-samples=100."
        ),
    ],
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Change a sweep that runs: trials at a time, and trials in all."""
    changes = {name.replace("-", "_"): value for name, value in read_sets(values).items()}
    print_answer(_attached(sweep, storage).set(**changes), sweep, as_json=json)


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
        from tunelight.extras.mcp import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise SettingsError("The package mcp is missing. Install it: pip install 'tunelight[mcp]'") from error
    serve(folder, storage or str(folder.resolve() / options.STORAGE))
