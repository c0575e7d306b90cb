"""up, down: keep a Ray of this machine ready between programs."""

from __future__ import annotations

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import print_either


@command("up; python sweep.py; python sweep.py; tunelight down")
def up(json: options.Json = False) -> None:
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
    text = f"Ray {'is ready' if new else 'was ready'} (process {there.pid}). To end it: tunelight down"
    print_either({"pid": there.pid, "address": there.address, "started": new}, text, as_json=json)


@command("down")
def down(json: options.Json = False) -> None:
    """End the Ray that `tunelight up` started."""
    from tunelight.cluster import standing

    ended = standing.down()
    print_either({"ended": ended}, "Ray has ended." if ended else "There was no Ray to end.", as_json=json)
