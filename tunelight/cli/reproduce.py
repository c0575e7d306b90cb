"""reproduce: run a trial again."""

from __future__ import annotations

from typing import Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, INTERRUPTED, command
from tunelight.cli.printing import print_either


@command("reproduce last best --ignore seconds_per_epoch", runs_code=True)
def reproduce(
    sweep: options.Sweep,
    trial: options.Trial,
    ignore: Annotated[
        list[str], typer.Option("--ignore", help="A metric not to compare, such as a time. Repeatable.")
    ] = [],
    storage: options.Storage = options.STORAGE,
    address: options.Address = None,
    json: options.Json = False,
) -> None:
    """Run a trial again with its seed, configuration and workers, and compare the metrics of all reports.

    It runs in a new sweep folder. Exit code 1: metrics differ.
    """
    from tunelight.record import find_sweep

    folder = find_sweep(sweep, storage)
    from tunelight.extras.reproduce import reproduce as run_again

    comparison = run_again(folder, trial, ignore=ignore, progress=False, **options.given(address=address))
    print_either(comparison, str(comparison), as_json=json)
    if not comparison.same:
        raise typer.Exit(INTERRUPTED if comparison.interrupted else FAILED)
