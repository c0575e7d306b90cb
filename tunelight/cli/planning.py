"""plan: what a sweep would do and cost, in simulated time."""

from __future__ import annotations

from typing import Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, command
from tunelight.cli.overrides import load_space_and_settings, parsed
from tunelight.cli.printing import print_either
from tunelight.errors import SettingsError, StorageError, unknown

_TAKES = ("num_samples", "workers", "max_epochs", "scheduler", "searcher", "repeats", "time_budget", "proxy")


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
    proxy_seconds: Annotated[
        float | None,
        typer.Option("--proxy-seconds-per-epoch", help="The same of a cheap trial, where the sweep has a proxy."),
    ] = None,
    price: Annotated[float | None, typer.Option("--price-per-gpu-hour", help="Price of a slot per hour.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="8h or 90m; other cluster sizes are tried, too.")
    ] = None,
    curves: Annotated[
        str | None,
        typer.Option("--curves", help="Simulate with the learning curves of an earlier sweep, or of a recorded task."),
    ] = None,
    sets: options.Sets = [],
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Estimate the time and cost of a sweep on a cluster. Exit code 1: it misses the deadline or cannot run."""
    asked = options.given(num_samples=num_samples, workers=options.workers_of(workers), max_epochs=max_epochs)
    space, settings = load_space_and_settings(file, sets, {**asked, **parsed(scheduler=scheduler)}, keys, after)
    for name in settings:
        if name not in _TAKES:
            raise SettingsError(unknown("A plan does not depend on", name, _TAKES, listed="It takes"))
    from tunelight.record import find_sweep
    from tunelight.simulation import plan as make
    from tunelight.simulation import tasks

    if curves is not None and curves not in tasks():
        try:
            curves = str(find_sweep(curves, storage))
        except StorageError as error:
            raise StorageError(f"{error} Recorded tasks are: {', '.join(tasks()) or 'none'}.") from error
    made = make(
        space,
        seconds_per_epoch=seconds_per_epoch,
        cluster=cluster,
        proxy_seconds_per_epoch=proxy_seconds,
        price_per_gpu_hour=price,
        deadline=deadline,
        curves=curves,
        **settings,
    )
    print_either(made.asdict(), str(made), as_json=json)
    if not made.feasible:
        raise typer.Exit(FAILED)
