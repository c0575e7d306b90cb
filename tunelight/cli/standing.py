"""up, down: keep a Ray of this machine ready between programs."""

from __future__ import annotations

import typer

from tunelight.cli.app import command
from tunelight.cli.options import Json
from tunelight.cli.printing import print_json


@command("up; python sweep.py; python sweep.py; tunelight down")
def up(json: Json = False) -> None:
    """Keep Ray running in the background of this machine.

    Sweeps then start at once: torch and Lightning are imported already. Only programs of the same user and Python
    environment find it. It ends after an hour without use, or by `tunelight down`.
    """
    from rich.console import Console

    from tunelight.cluster import standing
    from tunelight.reporting import Steps

    with Steps(shown=not json, console=Console(stderr=True)) as steps:
        steps("Starting Ray")
        there, new = standing.up()
    if json:
        print_json({"pid": there.pid, "address": there.address, "started": new})
    else:
        typer.echo(f"Ray {'is ready' if new else 'was ready'} (process {there.pid}). To end it: tunelight down")


@command("down")
def down(json: Json = False) -> None:
    """End the Ray that `tunelight up` started."""
    from tunelight.cluster import standing

    ended = standing.down()
    if json:
        print_json({"ended": ended})
    else:
        typer.echo("Ray has ended." if ended else "There was no Ray to end.")
