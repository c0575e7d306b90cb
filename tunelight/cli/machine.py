"""doctor: whether this machine is fit to run sweeps."""

from __future__ import annotations

import typer

from tunelight.cli.app import FAILED, app
from tunelight.cli.options import Json
from tunelight.cli.printing import print_json

_MARKS = {"ok": "ok  ", "note": "note", "wrong": "FIX "}


@app.command(epilog="Example: tunelight doctor --json")
def doctor(json: Json = False) -> None:
    """Look at versions, Horovod, GPUs, Ray, ports and disks, and say what to do. Exit code 1: something is wrong."""
    from tunelight.doctor import examine  # noqa: PLC0415

    findings = examine()
    wrong = [finding for finding in findings if finding.verdict == "wrong"]
    if json:
        print_json({"fit": not wrong, "findings": findings})
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.verdict]} {finding.name:<18} {finding.found}")
            if finding.advice:
                typer.echo(f"{'':24}{finding.advice}")
        typer.echo(f"{len(wrong)} to fix." if wrong else "This machine is fit to run sweeps.")
    if wrong:
        raise typer.Exit(FAILED)
