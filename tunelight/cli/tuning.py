"""tune-up: measures the fastest workers, loaders and batches for a sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, command
from tunelight.cli.overrides import load_space_and_settings, parsed
from tunelight.cli.printing import print_either, print_json, print_table
from tunelight.errors import SettingsError

# --- plan: what a sweep would take and cost -------------------------------------------------------


@command("plan space.yaml --cluster 16x8 --seconds-per-epoch 30 --deadline 8h", runs_code=True)
def plan(
    file: options.File,
    seconds_per_epoch: Annotated[
        float, typer.Option("--seconds-per-epoch", help="Seconds that an epoch of a trial takes on its workers.")
    ],
    cluster: Annotated[str, typer.Option("--cluster", help="Nodes x slots per node: 16x8.")],
    keys: options.Keys = [],
    after: options.After = [],
    num_samples: options.Samples = None,
    workers: options.Workers = None,
    max_epochs: options.Epochs = None,
    scheduler: options.Scheduler = None,
    price: Annotated[float | None, typer.Option("--price-per-gpu-hour", help="Price of a slot per hour.")] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", help="8h or 90m.")] = None,
    sets: options.Sets = [],
    json: options.Json = False,
) -> None:
    """Estimate the time and cost of a sweep on a cluster. Exit code 1: it misses the deadline or cannot run."""
    asked = options.given(num_samples=num_samples, workers=options.workers_of(workers), max_epochs=max_epochs)
    space, settings = load_space_and_settings(file, sets, {**asked, **parsed(scheduler=scheduler)}, keys, after)
    from tunelight.extras.plan import plan as make

    made = make(
        space,
        seconds_per_epoch=seconds_per_epoch,
        cluster=cluster,
        price_per_gpu_hour=price,
        deadline=deadline,
        **settings,
    )
    print_either(made.asdict(), str(made), as_json=json)
    if not made.feasible:
        raise typer.Exit(FAILED)


def _list(help_: str, name: str) -> Any:
    return typer.Option(name, metavar="A,B,...", help=help_)


@command("tune-up space.yaml --budget 2m", runs_code=True)
def tune_up(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A search space with model=: a YAML file, or the name of one that comes with tunelight.",
        ),
    ],
    try_workers: Annotated[
        str | None, _list("Workers of a trial. Default: powers of two that fit the cluster.", "--try-workers")
    ] = None,
    try_cpus: Annotated[
        str | None, _list("CPUs of a worker, and torch's threads. Default: now's and all of a node.", "--try-cpus")
    ] = None,
    loader_workers: Annotated[
        str | None, _list("The DataLoader's num_workers. Default: 0,1,2,4.", "--try-loader-workers")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help="When the search ends: 90s, 2m.")] = "2m",
    write: Annotated[bool, typer.Option("--write", help="Write the best settings into FILE; comments stay.")] = False,
    address: options.Address = None,
    sets: options.Sets = [],
    json: options.Json = False,
) -> None:
    """Measure which workers, loaders and batches train fastest, with the same result. For sweeps with model=.

    Experimental.
    """
    space, settings = load_space_and_settings(file, sets, options.given(address=address))
    if write and not Path(file).is_file():
        raise SettingsError(f"--write needs a file of your own, and {file} is none. Copy the space into one first.")
    from tunelight.extras.tuneup.tune_up import tune_up as measure

    def say(text: str) -> None:
        typer.echo(f"tunelight: {text}", err=True)

    asked = options.given(
        try_workers=_numbers(try_workers),
        try_cpus=_numbers(try_cpus),
        try_loader_workers=_numbers(loader_workers),
    )
    shown = say if sys.stderr.isatty() else lambda _: None
    made = measure(space, **asked, budget=budget, say=shown, **settings)
    if json:
        print_json(made.asdict())
    else:
        rows = made.table()
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        typer.echo(str(made))
    if write:
        made.write(file)
        say(f"written into {file}")


def _numbers(text: str | None) -> list[Any] | None:
    from tunelight.space.files import read_value

    return None if text is None else [read_value(part) for part in text.split(",")]
