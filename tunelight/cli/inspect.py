"""show, best and reproduce: show a sweep, show and export a trial, run one again."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunelight.cli import options
from tunelight.cli.app import FAILED, INTERRUPTED, command, unread
from tunelight.cli.printing import (
    about_sweep,
    about_trial,
    print_either,
    print_json,
    print_table,
    short,
    shown_path,
    words,
)
from tunelight.errors import SettingsError

if TYPE_CHECKING:
    from tunelight.results import SweepResults, TrialResult


_LAST_REPORTS = 10
_FIRST: Final = 20
"""Trials that are shown unless more are asked for."""


@command("show last --top 10      tunelight show last 5      tunelight show last --follow")
def show(
    sweep: options.Sweep,
    trial: Annotated[str | None, typer.Argument(help="A trial's id or number, or 'best'.")] = None,
    top: Annotated[int | None, typer.Option("--top", help="Show only the best TOP trials.", min=1)] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all trials.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the live table of a sweep that runs, until it ends.")
    ] = False,
    columns: options.Columns = None,
    storage: options.Storage = options.STORAGE,
    json: options.Json = False,
) -> None:
    """Show a sweep's best 20 trials and the running ones, or one trial in detail.

    --json has all trials. --follow --json prints what happens as it comes, one JSON object a line.
    """
    if every and (top is not None or trial is not None or follow):
        raise SettingsError("--all shows all trials of a sweep in a table: leave out the trial, --top and --follow.")
    if follow:
        if trial is not None or top is not None:
            raise SettingsError("--follow shows the sweep as it goes on: leave out the trial and --top.")
        from tunelight.record import find_sweep

        if json:
            with unread():
                for event in events(find_sweep(sweep, storage)):
                    print_json(event, indent=None)
            return
        from tunelight import reporting

        reporting.watch(find_sweep(sweep, storage), columns=options.names_of(columns))
        return
    if columns is not None:
        raise SettingsError("--columns is for the live table. Give --follow, too.")
    results = load(sweep, storage)
    if trial is not None:
        _show_trial(results.trial(trial), json)
        return
    about = about_sweep(results)
    if json:
        trials = results.every_trial if top is None else results.top(top)
        print_json(about | {"trials": [about_trial(each) for each in trials]})
        return
    typer.echo(results.summary())
    if not (about["ended"] or about["running"]):
        typer.echo(f"It was cut off: no process runs it. To resume: tunelight resume {shown_path(results.folder)}")
    further = [metric for metric, _ in results.objectives[1:]]
    header = ["trial", "state", results.metric or "metric", *further, "reports", "time", "configuration"]
    rows = []
    trials = list(_in_order(results, every=every)) if top is None else results.top(top)
    for each in trials:
        values = [each.value, *results.further(each).values(), each.reports, f"{each.seconds:.0f}s"]
        rows.append([each.id, each.state, *values, words(each.plain_config)])
    print_table(header, rows)
    if top is None and len(trials) < len(results.record.trials):
        typer.echo(f"{len(trials)} of {len(results.record.trials):,} trials; --all shows the others, too.")


def _in_order(results: SweepResults, *, every: bool) -> Iterator[TrialResult]:
    """Yield trials, the best first and those without a value last: the first few and what runs, or all."""
    from tunelight.record import RUNNING, ranked

    state = results.record
    for number, known in enumerate(dict.fromkeys([*ranked(state), *state.trials])):
        if every or number < _FIRST or state.trials[known].state == RUNNING:
            yield results.trial(known)


def _show_trial(trial: TrialResult, json: bool) -> None:
    about = about_trial(trial) | {"history": trial.history, "changes": trial.changes, "runs": trial.runs}
    if json:
        print_json(about)
        return
    for name in ("trial", "state", "value", "seconds", "seed", "checkpoint"):
        typer.echo(f"{name:<11} {about[name] if about[name] is not None else '-'}")
        if name == "state" and trial.stop_reason is not None:
            typer.echo(f"{'reason':<11} {trial.stop_reason}")
    if trial.branch is not None:
        typer.echo(f"{'branch of':<11} {trial.branch.parent} after report {trial.branch.number}")
    typer.echo(f"{'config':<11} {words(trial.plain_config)}")
    for run in trial.runs:
        git = run.get("git") or {}
        commit = f"  at {git['commit'][:12]}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else ""
        if run.get("command"):
            typer.echo(f"{'run by':<11} {' '.join(run['command'])}{commit}")
    if trial.history:
        names = [name for name in trial.history[-1] if name not in ("training_iteration", "timestamp")]
        reports = trial.history[-_LAST_REPORTS:]
        rows = [[each["training_iteration"], *(each.get(name) for name in names)] for each in reports]
        print_table(["report", *names], rows)
    if trial.error:
        typer.echo(f"\n{trial.error}")


def load(sweep: str, storage: str) -> SweepResults:
    """Read a sweep by its path or name; what ran when its driver was killed is interrupted. Raises: StorageError."""
    from tunelight.record import INTERRUPTED, RUNNING, apply, find_sweep, live_driver_of
    from tunelight.results import SweepResults

    results = SweepResults.load(find_sweep(sweep, storage))
    state = results.record
    cut_off = state.ended is None and live_driver_of(results.folder) is None
    for trial in [other for other in state.trials.values() if other.state == RUNNING] if cut_off else ():
        apply(state, {"kind": "state", "time": state.updated, "trial": trial.id, "state": INTERRUPTED})
    return results


# --- show --follow --json: what happens in a sweep, one JSON object a line ------------------------


_LOOK_S: Final = 0.2
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "sweep": (),
    "trial": ("trial", "config", "branch"),
    "state": ("trial", "state", "why", "error"),
    "report": ("trial", "training_iteration", "epoch", "metrics", "decision", "why", "workers"),
    "config": ("trial", "training_iteration", "parent", "config"),
    "checkpoint": ("trial", "training_iteration", "path"),
    "note": ("trial", "text"),
    "command": ("trial", "do", "ok", "said"),
    "end": ("reason",),
}
"""Kinds of the record's lines that are events, and what an event holds of its line."""


def events(folder: Path, sleep: Callable[[float], object] = time.sleep) -> Iterator[dict[str, Any]]:
    """Yield what happened in a sweep and what happens, until it ends; each event has a ``type`` and a ``time``.

    The last one is "end"; its ``reason`` is "cut off" where the driver is gone and has written no end.
    Raises: StorageError.
    """
    from tunelight.extras.attach import RecordFollower

    follower = RecordFollower(folder, brief=True)
    while True:
        for line in follower.look():
            if (event := _event(line, follower.state.sweep)) is not None and line["kind"] != "end":
                yield event
        if follower.state.ended is not None:
            yield {"type": "end", "time": follower.state.updated, "reason": follower.state.ended}
            return
        if follower.is_left_alone(time.monotonic()):
            yield {"type": "end", "time": time.time(), "reason": "cut off"}
            return
        sleep(_LOOK_S)


def _event(line: Mapping[str, Any], sweep: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the event of a line of the record; None for one that is none."""
    kind = line["kind"]
    if kind not in _FIELDS:
        return None
    event = {"type": kind, "time": line["time"], **{name: line[name] for name in _FIELDS[kind] if name in line}}
    if kind == "sweep":
        event |= {name: line["sweep"].get(name) for name in ("metric", "mode", "num_samples")}
    if kind == "state" and event.get("error"):
        event["error"] = f"{line['error'].get('type_name')}: {line['error'].get('message')}"
    if kind == "report":
        from tunelight.record import metric_value

        event["value"] = metric_value(line["metrics"], sweep.get("metric"))
    return event


# --- best: show and export a trial ---------------------------------------------------------------


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
