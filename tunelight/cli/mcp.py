"""mcp: sweeps for programs that speak the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.errors import SettingsError


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
