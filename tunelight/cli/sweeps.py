"""init, check, run, resume: start and continue sweeps."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunelight.cli import options
from tunelight.cli.app import AGAIN, FAILED, INTERRUPTED, OK, SOME_FAILED, command, unread
from tunelight.cli.overrides import load_space_and_settings, parsed, read_sets, settings_of
from tunelight.cli.printing import about_sweep, print_either, print_json, print_table, shown_path, words
from tunelight.errors import PreemptedError, ResourceError, SettingsError

if TYPE_CHECKING:
    from tunelight.extras.check import Checked
    from tunelight.results import SweepResults

Seed = Annotated[int | None, typer.Option("--seed", help="Random seed for configurations and training.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the live table.")]
StorageOfRun = Annotated[str | None, typer.Option("--storage", help="The folder of sweeps, or its URL.")]


@command("init my-sweep && cd my-sweep && tunelight check space.yaml")
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write into; created if missing.")] = Path(),
    script: Annotated[
        Path | None,
        typer.Option("--script", help="A training script: write only a space.yaml for its options, beside it."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a starter project: train.py, space.yaml and README.md. No file is overwritten.

    With --script the script is run up to where it parses its command line, and space.yaml gets domains around the
    defaults of its options.
    """
    from tunelight.cli.starter import write_space, write_starter

    if script is not None:
        if folder != Path():
            raise SettingsError(f"--script writes space.yaml beside the script. Leave {folder} out.")
        path = write_space(script)
        text = f"wrote {shown_path(path)}\nNext: look through it, then tunelight check {shown_path(path)}"
        print_either({"written": [path]}, text, as_json=json)
        return
    written = write_starter(folder)
    start = "" if folder == Path() else f"cd {folder} && "
    lines = [f"wrote {shown_path(path.absolute())}" for path in written]
    text = "\n".join([*lines, f"Next: {start}tunelight check space.yaml --batch"])
    print_either({"written": written}, text, as_json=json)


@command("check space.yaml --set model.lr=0.01 --workers 4 --batch", runs_code=True, takes_settings=True)
def check(
    file: options.File,
    keys: options.Keys = [],
    after: options.After = [],
    workers: options.Workers = None,
    gpus: options.Gpus = None,
    sets: options.Sets = [],
    batch: Annotated[bool, typer.Option("--batch", help="Also train one batch on the workers; starts Ray.")] = False,
    address: options.Address = None,
    json: options.Json = False,
) -> None:
    """Validate a sweep without running it.

    Settings and search space are checked, five samples shown, and whether a trial's workers fit this machine or the
    cluster. --batch starts Ray, trains and validates one batch on the workers (a train function: until its first
    report), and deletes what it wrote.
    """
    from rich.console import Console

    from tunelight.reporting import Steps

    with Steps(shown=not json, console=Console(stderr=True)) as steps:
        steps(f"Importing what {shown_path(Path(file))} names")
        asked = {"workers": options.workers_of(workers), "gpus_per_worker": options.gpus_of(gpus), "address": address}
        space, settings = load_space_and_settings(file, sets, options.given(**asked), keys, after)
        steps("Checking the sweep")
        from tunelight.extras.check import check as look
        from tunelight.extras.check import dry_run

        checked = look(space, settings)
        steps.end()
        if not json:
            _show_checked(checked)
        if checked.misfit:
            raise ResourceError(checked.misfit)
        if batch:
            steps(f"Training one batch, workers: {checked.reservation.workers}")
        tried = dry_run(checked) if batch else None
    if json:
        print_json(_checked(checked) | {"batch": tried})
    elif tried is not None and tried.error is None:
        typer.echo(f"One batch trained; reported: {words(tried.metrics)}")
    if tried is not None and tried.error is not None:
        typer.echo(f"One batch failed, with {words(tried.config)}:\n{tried.error}", err=True)
        raise typer.Exit(FAILED)


def _show_checked(checked: Checked) -> None:
    settings, space = checked.settings, checked.space
    domains = space.dotted(space.describe())
    rows = []
    for key in space.domains:
        domain = domains.get(key)
        if isinstance(domain, dict):
            domain = ", ".join(f"{name} {value}" for name, value in domain.items())
        rows.append((key, str(domain)))
    print_table(["key", "domain"], rows, "Search space")
    samples = map(space.dotted, checked.samples)
    print_table(list(space.domains), [[sample.get(key) for key in space.domains] for sample in samples], "Samples")
    for arguments in checked.commands:
        typer.echo(shlex.join([str(settings.script), *arguments]))
    if checked.about:
        typer.echo(checked.about)
    typer.echo(
        f"{checked.trials} trials, judged by {settings.metric} ({settings.mode}), each on {checked.reservation}."
    )
    if (again := settings.repeats) is not None:
        typer.echo(
            f"Then the best {again.top} configurations are trained again, "
            f"{f'on {again.repeats} folds' if again.folds else f'{again.repeats} times in all'}, while they can win."
        )
    if not checked.misfit:
        has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in checked.nodes[:4])
        typer.echo(f"It fits {checked.cluster} ({has}{'; ...' if len(checked.nodes) > 4 else ''}).")


def _checked(checked: Checked) -> dict[str, Any]:
    return {
        "space": checked.space.describe(),
        "samples": checked.samples,
        **({"commands": checked.commands} if checked.commands else {}),
        "num_samples": checked.trials,
        "metric": checked.settings.metric,
        "mode": checked.settings.mode,
        "gang": checked.reservation.bundles,
        "cluster": checked.cluster,
        "nodes": checked.nodes,
    }


@command(
    "run space.yaml --num-samples 50 --workers 4 --set model.lr=0.01", runs_code=True, takes_settings=True, stays=True
)
def run(
    file: options.File,
    keys: options.Keys = [],
    after: options.After = [],
    num_samples: options.Samples = None,
    max_epochs: options.Epochs = None,
    metric: options.Metric = None,
    mode: options.Mode = None,
    scheduler: options.Scheduler = None,
    searcher: options.Searcher = None,
    workers: options.Workers = None,
    gpus: options.Gpus = None,
    sets: options.Sets = [],
    name: Annotated[
        str | None, typer.Option("--name", help="The sweep's name. Default: the model's name and the time.")
    ] = None,
    storage: StorageOfRun = None,
    seed: Seed = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the sweep --name, if there is one.")] = False,
    address: options.Address = None,
    columns: options.Columns = None,
    web: options.Web = False,
    quiet: Quiet = False,
    json: options.Json = False,
) -> None:
    """Run a sweep. Options override the file. Ctrl-C ends the sweep and keeps what was reported."""
    asked = parsed(scheduler=scheduler, searcher=searcher) | options.given(
        num_samples=num_samples,
        max_epochs=max_epochs,
        metric=metric,
        mode=mode,
        workers=options.workers_of(workers),
        gpus_per_worker=options.gpus_of(gpus),
        name=name,
        storage=storage,
        seed=seed,
        address=address,
        resume=resume or None,
        web=web or None,
        progress=False if quiet or json else options.names_of(columns),
    )
    space, settings = load_space_and_settings(file, sets, asked, keys, after)
    from tunelight.sweep.run import run as start

    _finish(lambda: start(space, **settings), quiet=quiet, json=json)


@command("train train.py --workers 4 -- --lr 0.01", runs_code=True, takes_settings=True, stays=True)
def train(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A training script, train.py, or a module.")],
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE", help="Its configuration, given as a sweep does; its own arguments follow --."
        ),
    ] = [],
    after: options.After = [],
    workers: options.Workers = None,
    gpus: options.Gpus = None,
    sets: options.Sets = [],
    name: Annotated[str | None, typer.Option("--name", help="Its name. Default: the script's, and the time.")] = None,
    storage: StorageOfRun = None,
    seed: Seed = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --name, if there is one.")] = False,
    address: options.Address = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show what the script prints.")] = False,
    json: options.Json = False,
) -> None:
    """Run a script once on a gang of workers, as torchrun does, with its own arguments after --.

    A worker or node that is lost is replaced, and the training goes on from its last checkpoint. What the script
    reports is recorded as of a sweep of one trial.
    """
    from tunelight.space import SearchSpace
    from tunelight.sweep.run import run as start

    asked = options.given(
        workers=options.workers_of(workers),
        gpus_per_worker=options.gpus_of(gpus),
        name=name,
        storage=storage,
        seed=seed,
        address=address,
        resume=resume or None,
    )
    overrides = settings_of(read_sets(sets))
    once = {"num_samples": 1, "scheduler": "fifo", "progress": not (quiet or json)}
    config = {key: {"fixed": value} for key, value in read_sets(values, "").items()}
    space = SearchSpace(config, script=script, args=list(after))
    _finish(lambda: start(space, **{**once, **overrides, **asked}), quiet=True, json=json)


@command("resume last      tunelight resume last --num-samples 100", runs_code=True, stays=True)
def resume(
    sweep: options.Sweep,
    num_samples: options.Samples = None,
    max_epochs: options.Epochs = None,
    sets: options.Sets = [],
    storage: options.Storage = options.STORAGE,
    address: options.Address = None,
    columns: options.Columns = None,
    web: options.Web = False,
    quiet: Quiet = False,
    json: options.Json = False,
) -> None:
    """Resume a sweep: trials that were cut off continue from their last checkpoint, finished ones stay.

    With --num-samples, the new total, trials are added, and with --max-epochs epochs.
    """
    from tunelight.record import find_sweep

    folder = find_sweep(sweep, storage)
    settings = {
        **settings_of(read_sets(sets)),
        **options.given(num_samples=num_samples, max_epochs=max_epochs, address=address, web=web or None),
    }
    from tunelight.sweep.resume import resume as go_on

    names = options.names_of(columns)
    progress = False if quiet or json else settings.get("progress", True) if names is None else names
    _finish(lambda: go_on(folder, **settings | {"progress": progress}), quiet=quiet, json=json)


@command("down")
def down(json: options.Json = False) -> None:
    """End the Ray that stays ready for five minutes after run, train and resume, for the next of them."""
    from tunelight.extras.stay import down as end

    ended = end()
    print_either({"ended": ended}, "Ray has ended." if ended else "No Ray is kept ready.", as_json=json)


def _finish(sweep: Callable[[], SweepResults], *, quiet: bool, json: bool) -> None:
    """Run a sweep, and print how it went. Raises: typer.Exit with its exit code."""
    from tunelight.results.trial import counted

    cut_off = INTERRUPTED
    try:
        results = sweep()
    except PreemptedError as error:
        if error.results is None:
            raise typer.Exit(AGAIN) from error
        results, cut_off = error.results, AGAIN
    with unread():
        if json:
            print_json(about_sweep(results))
        else:
            if quiet:  # else the last line of its progress has said so
                typer.echo(results.summary())
            where = shown_path(results.folder)
            goes_on = results.ended in ("interrupted", "stopped")
            typer.echo(f"In {where}. {'To go on: tunelight resume' if goes_on else 'Next: tunelight show'} {where}")
            if failed := results.errors:
                many = f"{len(failed)} of {counted(len(results.every_trial), 'trial')} failed"
                typer.echo(f"{many}; the first: tunelight show {where} {failed[0].index}")
    raise typer.Exit(cut_off if results.ended == "interrupted" else _exit_code(results))


def _exit_code(results: SweepResults) -> int:
    """Return the exit code of a sweep that was not cut off; one with ``give_up_after=0`` tolerates failed trials."""
    from tunelight.record import read_sweep_file

    failed = len(results.errors)
    well = results.top(1) or (results.metric is None and any(not trial.failed for trial in results))
    if not well and (failed or results.ended != "stopped"):  # who stops a sweep by command means it
        return FAILED
    tolerated = (read_sweep_file(results.folder).get("failures") or {}).get("give_up_after") == 0
    return SOME_FAILED if failed and not tolerated else OK
