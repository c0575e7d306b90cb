"""What several commands take, and how names of sweeps are completed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tunelight.errors import SettingsError


def _sweep_names(incomplete: str) -> list[str]:
    """Return the names of sweeps that begin so, for the shell."""
    from tunelight.record import list_sweeps

    return [name for name in ("last", *(one.folder.name for one in list_sweeps())) if name.startswith(incomplete)]


def _files(incomplete: str) -> list[str]:
    """Return YAML files that begin so, for the shell."""
    return [str(path) for path in sorted(Path().glob(f"{incomplete}*.y*ml"))]


def _formats() -> list[str]:
    from tunelight.results import FORMATS

    return list(FORMATS)


Storage = Annotated[str, typer.Option("--storage", help="The folder that sweeps lie in, or its URL.")]
STORAGE = "tunelight_runs"

Sweep = Annotated[
    str,
    typer.Argument(help="A sweep's folder or URL, its name in --storage, or 'last'.", autocompletion=_sweep_names),
]
Trial = Annotated[str, typer.Argument(help="A trial's id or number, or 'best'.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
File = Annotated[str, typer.Argument(help="A space's YAML file, or the name of one that ships.", autocompletion=_files)]
Sets = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of tunelight.run (metric=val_acc), as if that line stood in the file; any other NAME is a key "
        "of the space, which is fixed (model.lr=0.01), or an argument of model, data or trainer. VALUE is YAML. "
        "Repeatable.",
    ),
]
Workers = Annotated[
    str | None, typer.Option("--workers", help="Workers of a trial; 1,4 is an elastic gang of one to four.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="yaml, json, lightning-cli, hydra or python (by the suffix; a .yaml of a sweep with model= is for "
        "LightningCLI).",
        autocompletion=_formats,
    ),
]
Checkpoint = Annotated[
    bool, typer.Option("--checkpoint", help="Copy the best checkpoint beside it, and its weights as safetensors.")
]


def workers_of(text: str | None) -> Any:
    """Return ``--workers`` as ``tunelight.run`` takes it. Raises: SettingsError."""
    if text is None:
        return None
    parts = text.replace(":", ",").split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(parts) > 2:
        raise SettingsError(f"--workers takes a whole number, or the least and the most as 1,4; not {text!r}.")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}
