"""best: show and export a trial."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, INTERRUPTED, command
from tunelight.cli.inspect import load
from tunelight.cli.printing import about_trial, print_either, print_json, short, words
from tunelight.errors import SettingsError


@command("best last --export best.yaml --checkpoint      tunelight best last 3 --export trial.yaml")
def best(
    sweep: options.Sweep,
    trial: Annotated[str, typer.Argument(help="Another trial's id or number.")] = "best",
    export: Annotated[Path | None, typer.Option("--export", help="Also write it to this file.")] = None,
    format: options.Format = None,
    checkpoint: options.Checkpoint = False,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Show a sweep's best trial, or another one, and write it to a file.

    The file is for LightningCLI or a shell, or holds its configuration as YAML or JSON. Of a sweep that tuned a script,
    the command is shown that trains it, and the one that does so without tunelight.
    """
    if export is None and (format is not None or checkpoint):
        raise SettingsError("--format and --checkpoint say how to export, but not where. Give --export FILE too.")
    results = load(sweep, storage)
    chosen = results.best if trial == "best" else results.trial(trial)
    written = None
    if export is not None:
        from tunelight.extras.export import format_of

        written = format_of(export, format, parts=chosen.has_parts)
        chosen.export(export, written, checkpoint=checkpoint)
    if json:
        print_json(about_trial(chosen) | {"exported": written})
        return
    also = "".join(f", with {name}={short(value)}" for name, value in results.further(chosen).items())
    value = "no value" if chosen.value is None else f"{chosen.value:.6g}"
    typer.echo(f"Trial {chosen.id}: {results.metric}={value}{also}\n  {words(chosen.plain_config)}")
    if (line := chosen.command) is not None:
        typer.echo(f"  {shlex.join(line)}")
        if (plain := chosen.plain_command) is not None:
            typer.echo(f"  Without tunelight: {shlex.join(plain)}")
    if trial == "best" and (failed := results.ahead) is not None:
        typer.echo(f"Trial {failed.id}, which {failed.outcome}, had reported {results.metric}={failed.value:.6g}.")
    if export is not None:
        _print_exported(export, written)


def _print_exported(path: Path, format: str | None) -> None:
    typer.echo(f"Wrote {path} ({format})")
    if format == "lightning-cli":
        program = ""
        with contextlib.suppress(OSError, ValueError):  # no text
            program = Path("train.py").read_text(encoding="utf-8")
        if "LightningCLI(" in program:
            typer.echo(f"Train it: python train.py fit --config {path}")
        else:
            typer.echo(f"Train it with a program that calls LightningCLI(Model, Data): ... fit --config {path}")
    elif format == "shell":
        typer.echo(f"Train it: bash {path}")


# --- reproduce: run a trial again -----------------------------------------------------------------


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
