"""serve: sweeps in the browser."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tunelight.cli import options
from tunelight.cli.app import command
from tunelight.cli.printing import print_line

if TYPE_CHECKING:
    from tunelight.extras.web.server import Serving

_OPENED_S: Final = 60.0
"""How long a browser may take to read the file that it is sent to."""


def _open(address: str) -> None:
    """Open a browser by a file, so that the token is in no list of processes; it may run in this terminal."""
    file, name = tempfile.mkstemp(prefix="tunelight-", suffix=".html")
    with os.fdopen(file, "w") as stream:
        stream.write(f'<meta http-equiv="refresh" content="0; url={address}">')
    webbrowser.open(Path(name).as_uri())
    time.sleep(_OPENED_S)
    Path(name).unlink(missing_ok=True)


@command("serve runs --read-only")
def serve(
    storage: Annotated[str, typer.Argument(help="The folder of sweeps, or its URL.")] = options.STORAGE,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on. 0.0.0.0 lets in everybody who reaches it and has the token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", help="Default: 8642, or a free one where that is taken.", min=1, max=65535)
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Only show: take no commands.")] = False,
    open: options.Open = False,
    json: options.Json = False,
) -> None:
    """Show sweeps in the browser while they run, compare them, and steer them, until Ctrl-C.

    The address that is printed holds a token, without which nothing is shown.
    """
    from tunelight.extras.web.server import serve as run

    def say(own: Serving) -> None:
        if json:
            print_line({"storage": storage, "address": own.address})
        else:
            typer.echo(f"Sweeps in {storage}: {own.address}")
            typer.echo("Ctrl-C ends it.")
        if open:
            threading.Thread(target=_open, args=(own.address,), daemon=True).start()

    run(storage, host=host, port=port, read_only=read_only, say=say)
