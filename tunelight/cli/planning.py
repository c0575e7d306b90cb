"""simulate, plan: what a sweep would do and cost, in simulated time."""

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
from tunelight.cli.printing import print_json, short
from tunelight.errors import SettingsError, StorageError, unknown

Cluster = Annotated[str, typer.Option("--cluster", help="Nodes x slots per node: 16x8.")]


@command("simulate digits --scheduler elastic_asha --workers 1,4 --cluster 2x8")
def simulate(
    curves: Annotated[str, typer.Argument(help="A recorded task, or a sweep: its folder, its name, or 'last'.")],
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Number of trials.")] = 100,
    workers: Workers = None,
    cluster: Cluster = "1x8",
    max_epochs: Epochs = None,
    scheduler: Scheduler = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    time_budget: Annotated[
        str | None, typer.Option("--time-budget", help="Simulated time after which the sweep ends: 2h.")
    ] = None,
    storage: Storage = STORAGE,
    json: Json = False,
) -> None:
    """Simulate a sweep: the real scheduler on recorded learning curves, in simulated time."""
    from tunelight.record import find_sweep
    from tunelight.simulation import simulate as run
    from tunelight.simulation import tasks

    known = tasks()
    if curves not in known:
        try:
            curves = str(find_sweep(curves, storage))
        except StorageError as error:
            raise StorageError(f"{error} Recorded tasks are: {', '.join(known) or 'none'}.") from error
    more = {
        **given(workers=workers_of(workers), max_epochs=max_epochs, time_budget=time_budget),
        **parsed(scheduler=scheduler),
    }
    found = run(curves, num_samples=num_samples, cluster=cluster, seed=seed, **more).asdict()
    if json:
        print_json(found)
        return
    hours = found["makespan_s"] / 3600
    typer.echo(f"{num_samples} trials on {cluster} slots took {hours:.2f} virtual hours.")
    typer.echo(f"worker-hours held  {found['worker_seconds'] / 3600:.1f}")
    typer.echo(f"idle slots         {found['idle_share']:.0%} (at the tail {found['tail_idle_share']:.0%})")
    typer.echo(f"best {found['metric']:<13} {short(found['best'])} (the best that there was: {short(found['oracle'])})")
    typer.echo(
        f"trials             {', '.join(f'{count} {state.lower()}' for state, count in found['trials'].items())}"
    )
    for note in found["notes"]:
        typer.echo(f"- {note}")


@command("plan space.yaml --cluster 16x8 --seconds-per-epoch 30 --deadline 8h", runs_code=True)
def plan(
    file: File,
    seconds_per_epoch: Annotated[
        float, typer.Option("--seconds-per-epoch", help="Seconds that an epoch of a trial takes on its workers.")
    ],
    cluster: Cluster,
    num_samples: Samples = None,
    workers: Workers = None,
    max_epochs: Epochs = None,
    scheduler: Scheduler = None,
    price: Annotated[float | None, typer.Option("--price-per-gpu-hour", help="Price of a slot per hour.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="8h or 90m; other cluster sizes are tried, too.")
    ] = None,
    sets: Sets = [],
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

    made = make(
        space,
        seconds_per_epoch=seconds_per_epoch,
        cluster=cluster,
        price_per_gpu_hour=price,
        deadline=deadline,
        **options,
    )
    if json:
        print_json(made.asdict())
    else:
        typer.echo(str(made))
    if not made.feasible:
        raise typer.Exit(FAILED)
