"""Output of commands: tables, and JSON."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tunelight.stores.masking import printable

if TYPE_CHECKING:
    from tunelight.results import SweepResults, TrialResult


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Print data as strict JSON: NaN and infinities become null. Without an ``indent`` it is one line."""
    from tunelight.record import to_json_types

    typer.echo(json.dumps(_strict(to_json_types(data)), indent=indent))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WIDEST: Final = 10_000
_NARROW: Final = 10
"""Characters that a column needs; in a narrower terminal, rows are printed with one value per line."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table: as wide as the terminal, full width into a file, one value per line in a narrow terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    cells = [[short(value) for value in row] for row in rows]
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console()
    full_width = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=full_width)
    if console.width < min(full_width, _NARROW * len(columns)):
        for row in cells:
            typer.echo("\n".join(f"{column}: {value}" for column, value in zip(columns, row, strict=True)) + "\n")
        return
    console.print(table, crop=False)


def short(value: Any) -> str:
    """Return a value with four significant digits, None as "-"."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def age(seconds: float) -> str:
    """Return how long ago a time was: "3m ago"."""
    past = max(0.0, time.time() - seconds)
    unit, length = next((unit for unit in (("d", 86400), ("h", 3600), ("m", 60)) if past >= unit[1]), ("s", 1))
    return f"{past / length:.0f}{unit} ago"


def size(count: float) -> str:
    """Return a number of bytes: "1.3 GB"."""
    from rich.filesize import decimal

    return decimal(int(count))


def words(config: Mapping[str, Any]) -> str:
    """Return a configuration on one line."""
    return ", ".join(f"{key}={short(value)}" for key, value in config.items())


def about_sweep(results: SweepResults) -> dict[str, Any]:
    """Return a summary of a sweep for JSON; if it has not ended and is not running, it was cut off."""
    from tunelight.record import live_driver_of

    best = results.best if results.top(1) else None
    repeated = results.repeated()
    return {
        "sweep": results.name,
        "folder": results.folder,
        "metric": results.metric,
        "mode": results.mode,
        "objectives": results.objectives,
        "ended": results.ended,
        "running": results.ended is None and live_driver_of(results.folder) is not None,
        "trials": len(results),
        "states": {state: count for state, count in results.counts.items() if count},
        "best": None if best is None else about_trial(best),
        **({"repeated": [asdict(standing) for standing in repeated]} if repeated else {}),
        **({"pareto": [trial.id for trial in results.pareto()]} if len(results.objectives) > 1 else {}),
    }


def about_trial(trial: TrialResult) -> dict[str, Any]:
    """Return a summary of a trial for JSON."""
    return {
        "trial": trial.id,
        **({} if trial.repeats is None else {"repeats": trial.repeats, "repetition": trial.repetition}),
        **({} if trial.branch is None else {"branch": asdict(trial.branch)}),
        "state": trial.state,
        "stop_reason": trial.stop_reason,
        "value": trial.value,
        "metrics": trial.metrics,
        "config": trial.plain_config,
        "reports": trial.reports,
        "seconds": trial.seconds,
        "seed": trial.seed,
        "checkpoint": trial.address,
        "error": trial.error,
    }


def print_either(data: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: data for programs, text for people."""
    if as_json:
        print_json(data)
    else:
        typer.echo(text)


def print_answer(answer: str, sweep: str, *, as_json: bool) -> None:
    """Print the answer of a sweep's driver to a command."""
    print_either({"sweep": sweep, "answer": answer}, f"{answer[0].upper()}{answer[1:]}.", as_json=as_json)


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory, if it is below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
