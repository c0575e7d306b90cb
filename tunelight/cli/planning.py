"""plan: what a sweep would do and cost, in simulated time."""

from __future__ import annotations

from typing import Annotated

import typer

from tunelight.cli.app import FAILED, command
from tunelight.cli.options import (
    STORAGE,
    Epochs,
    File,
    Json,
    Samples,
    Scheduler,
    Sets,
    Storage,
    Workers,
    given,
    workers_of,
)
from tunelight.cli.overrides import load_space_and_settings, parsed
from tunelight.cli.printing import print_json
from tunelight.errors import SettingsError, StorageError, unknown


@command("plan space.yaml --cluster 16x8 --seconds-per-epoch 30 --deadline 8h", runs_code=True)
def plan(
    file: File,
    seconds_per_epoch: Annotated[
        float, typer.Option("--seconds-per-epoch", help="Seconds that an epoch of a trial takes on its workers.")
    ],
    cluster: Annotated[str, typer.Option("--cluster", help="Nodes x slots per node: 16x8.")],
    num_samples: Samples = None,
    workers: Workers = None,
    max_epochs: Epochs = None,
    scheduler: Scheduler = None,
    price: Annotated[float | None, typer.Option("--price-per-gpu-hour", help="Price of a slot per hour.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="8h or 90m; other cluster sizes are tried, too.")
    ] = None,
    curves: Annotated[
        str | None,
        typer.Option(
            "--curves",
            help="Simulate with the learning curves of an earlier sweep, or of a recorded task.",
        ),
    ] = None,
    sets: Sets = [],
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Estimate the time and cost of a sweep on a cluster. Exit code 1: it misses the deadline or cannot run."""
    space, settings = load_space_and_settings(
        file, sets, given(num_samples=num_samples, workers=workers_of(workers), max_epochs=max_epochs)
    )
    takes = ("num_samples", "workers", "max_epochs", "scheduler")
    for name in settings:
        if name not in takes:
            raise SettingsError(unknown("A plan does not depend on", name, takes, listed="It takes"))
    options = {**settings, **parsed(scheduler=scheduler)}
    from tunelight.simulation import plan as make
    from tunelight.simulation import tasks

    if curves is not None and curves not in tasks():
        curves = _recorded(curves, storage)
    made = make(
        space,
        seconds_per_epoch=seconds_per_epoch,
        cluster=cluster,
        price_per_gpu_hour=price,
        deadline=deadline,
        curves=curves,
        **options,
    )
    if json:
        print_json(made.asdict())
    else:
        typer.echo(str(made))
    if not made.feasible:
        raise typer.Exit(FAILED)


def _recorded(sweep: str, storage: str) -> str:
    """Return the folder of a sweep whose curves are meant. Raises: StorageError."""
    from tunelight.record import find_sweep
    from tunelight.simulation import tasks

    try:
        return str(find_sweep(sweep, storage))
    except StorageError as error:
        raise StorageError(f"{error} Recorded tasks are: {', '.join(tasks()) or 'none'}.") from error
