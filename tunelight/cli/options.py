"""Options and arguments that several commands share, and their shell completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tunelight.errors import SettingsError


def _sweep_names(incomplete: str) -> list[str]:
    """Complete the name of a sweep."""
    from tunelight.record import list_sweeps

    return [name for name in ("last", *(sweep.folder.name for sweep in list_sweeps())) if name.startswith(incomplete)]


def _files(incomplete: str) -> list[str]:
    """Complete the path of a YAML file."""
    return [str(path) for path in sorted(Path().glob(f"{incomplete}*.y*ml"))]


def _formats() -> list[str]:
    from tunelight.results import FORMATS

    return list(FORMATS)


Storage = Annotated[str, typer.Option("--storage", help="The folder of sweeps, or its URL.")]
STORAGE = "tunelight_runs"

Sweep = Annotated[
    str,
    typer.Argument(help="A sweep's folder or URL, its name in --storage, or 'last'.", autocompletion=_sweep_names),
]
Sweeps = Annotated[
    list[str],
    typer.Argument(
        help="A sweep's folder or URL, its name in --storage, or 'last'. Several are compared.",
        autocompletion=_sweep_names,
    ),
]
Trial = Annotated[str, typer.Argument(help="A trial's id or number, or 'best'.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
File = Annotated[
    str,
    typer.Argument(
        help="A search space: a YAML file, or the name of one that comes with tunelight.", autocompletion=_files
    ),
]
Sets = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Give a setting of tunelight.run (metric=val_acc), or fix a key of the space (model.lr=0.01) or an "
        "argument of model, data or trainer. VALUE is YAML. Repeatable.",
    ),
]
Workers = Annotated[
    str | None, typer.Option("--workers", help="Workers of a trial; 1,4 is an elastic gang of one to four.")
]
Samples = Annotated[int | None, typer.Option("--num-samples", "-n", help="Trials in all.")]
Epochs = Annotated[int | None, typer.Option("--max-epochs", help="Epochs of a trial that is not stopped early.")]
Scheduler = Annotated[str | None, typer.Option("--scheduler", help="asha, or YAML: '{name: asha, grace_period: 2}'.")]
Searcher = Annotated[
    str | None, typer.Option("--searcher", help="random, tpe, gp, cmaes, ..., or YAML: '{name: tpe}'.")
]
Metric = Annotated[str | None, typer.Option("--metric", help="The logged metric that trials are judged by.")]
Mode = Annotated[str | None, typer.Option("--mode", help="min or max: which values of the metric are better.")]
Gpus = Annotated[float | None, typer.Option("--gpus", help="GPUs of each worker.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="yaml, json, lightning-cli, hydra or python. Default: by the suffix; .yaml is lightning-cli for a sweep "
        "with model=.",
        autocompletion=_formats,
    ),
]
Checkpoint = Annotated[
    bool, typer.Option("--checkpoint", help="Also copy the best checkpoint, and its weights as safetensors.")
]


def workers_of(text: str | None) -> Any:
    """Return ``--workers`` as ``tunelight.run`` takes it. Raises: SettingsError."""
    if text is None:
        return None
    parts = text.replace(":", ",").split(",")
    if not all(part.strip().isdecimal() for part in parts) or len(parts) > 2:
        raise SettingsError(f"--workers takes a whole number, or the least and the wanted number as 1,4; not {text!r}.")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def gpus_of(number: float | None) -> float | None:
    """Return ``--gpus``, a whole number as one."""
    return int(number) if number is not None and number.is_integer() else number


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
