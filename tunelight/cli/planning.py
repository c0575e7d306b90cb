"""plan: what a sweep would take and cost."""

from __future__ import annotations

from typing import Annotated

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, command
from tunelight.cli.overrides import load_space_and_settings, parsed
from tunelight.cli.printing import print_either


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
