"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tunelight.errors import SettingsError

Storage = Annotated[str, typer.Option("--storage", help="The folder of sweeps, or its URL.")]
STORAGE = "tunelight_runs"

Sweep = Annotated[str, typer.Argument(help="A sweep's folder or URL, its name in --storage, or 'last'.")]
Sweeps = Annotated[list[str], typer.Argument(help="Sweeps: folders or URLs, names in --storage, or 'last'.")]
Trial = Annotated[str, typer.Argument(help="A trial's id or number, or 'best'.")]
Open = Annotated[bool, typer.Option("--open", help="Open it in a browser.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A search space: a YAML file, or the name of one that comes with tunelight. Or a script, train.py.",
    ),
]
Keys = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=DOMAIN",
        help="Of a script: what is searched, lr='loguniform(1e-4, 1e-1)' hidden=32,64. Its own arguments follow --.",
    ),
]
After = Annotated[list[str], typer.Option("--after", hidden=True)]
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
    str | None, typer.Option("--workers", help="Workers per trial. 1,4: elastic, from one worker to four.")
]
Samples = Annotated[int | None, typer.Option("--num-samples", "-n", help="Number of trials.")]
Epochs = Annotated[int | None, typer.Option("--max-epochs", help="Epochs of a trial that is not stopped early.")]
Scheduler = Annotated[str | None, typer.Option("--scheduler", help="asha, or YAML: '{name: asha, grace_period: 2}'.")]
Searcher = Annotated[
    str | None, typer.Option("--searcher", help="random, auto, tpe, gp, cmaes, ..., or YAML: '{name: tpe}'.")
]
Metric = Annotated[str | None, typer.Option("--metric", help="The logged metric that trials are judged by.")]
Mode = Annotated[str | None, typer.Option("--mode", help="min or max: which values of the metric are better.")]
Gpus = Annotated[float | None, typer.Option("--gpus", help="GPUs of each worker.")]
Address = Annotated[
    str | None, typer.Option("--address", help="Address of a Ray cluster. Default: RAY_ADDRESS, else a local Ray.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,...",
        help="Columns of the live table: keys, metrics, workers, epoch, best, time, GPU. Default: all that fit.",
    ),
]
Web = Annotated[
    bool, typer.Option("--web", help="Serve a live page of the sweep on this machine, and print its address.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="yaml, json, lightning-cli or shell. Default: by the suffix; .yaml is lightning-cli for a sweep with "
        "model=.",
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
        raise SettingsError(
            f"--workers takes a whole number, or the smallest and the largest number as 1,4; not {text!r}."
        )
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def gpus_of(number: float | None) -> float | None:
    """Return ``--gpus``, a whole number as one."""
    return int(number) if number is not None and number.is_integer() else number


def names_of(text: str | None) -> list[str] | None:
    """Return the names that ``--columns`` lists."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
