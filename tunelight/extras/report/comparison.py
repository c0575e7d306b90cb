"""Several sweeps side by side: a table of them, their best values trial by trial, and a section for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import SettingsError
from tunelight.extras.figures.curves import best_by_trials, colour_of
from tunelight.extras.report.sections import (
    SETTINGS,
    Block,
    Section,
    cards,
    figure_section,
    how_it_was_run,
    settings_of,
)
from tunelight.record import OUTCOMES, view
from tunelight.record.view import plain, plain_pairs
from tunelight.reporting.words import age, compact, elapsed
from tunelight.results.words import counted
from tunelight.settings.checks import flatten

if TYPE_CHECKING:
    from tunelight.results import SweepResults

_MOST_KEYS: Final = 20
"""Keys in which the best configurations differ that have a column."""
_MOST_SPACE: Final = 100
_TOP: Final = 10
"""Trials of a sweep that its section lists."""


def compared(several: Sequence[SweepResults]) -> dict[str, Section]:
    """Return the sections of a comparison of sweeps, by their ids.

    Raises: SettingsError for none, for a sweep that is given twice, and where their metrics or modes differ.
    """
    _check(several)
    sweeps = _named(several)
    return {
        "sweeps": {"title": "Sweeps", "blocks": [*_overview(sweeps)]},
        "by_trials": figure_section(best_by_trials(sweeps)),
        **{f"sweep-{number}": _sweep(number, name, sweeps[name]) for number, name in enumerate(sweeps)},
    }


def _check(several: Sequence[SweepResults]) -> None:
    if not several:
        raise SettingsError("A report needs a sweep, but the list of them is empty. Give one, or several to compare.")
    seen: set[Any] = set()
    for results in several:
        if results.folder in seen:
            raise SettingsError(f"The sweep {results.folder} is given twice. Give each sweep once.")
        seen.add(results.folder)
    judged = {results.folder: (results.metric or "metric", results.mode) for results in several}
    if len(set(judged.values())) > 1:
        listed = "; ".join(f"{folder.name} by {metric!r} ({mode})" for folder, (metric, mode) in judged.items())
        raise SettingsError(
            f"Only sweeps with the same metric and mode can be compared, but these are judged differently: {listed}. "
            "Give those that have one metric, or write a report of each."
        )


def _named(several: Sequence[SweepResults]) -> dict[str, SweepResults]:
    """Return sweeps by their names, or by more of their paths where names are alike."""
    found = {}
    for results in several:
        parts = results.folder.parts
        length = 1
        while length < len(parts) and any(
            other.folder != results.folder and other.folder.parts[-length:] == parts[-length:] for other in several
        ):
            length += 1
        found["/".join(parts[-length:])] = results
    return found


def _overview(sweeps: Mapping[str, SweepResults]) -> Iterator[Block]:
    """Yield the table of sweeps, that of the settings in which they differ, and their search spaces."""
    first = next(iter(sweeps.values()))
    metric = first.metric or "metric"
    known = {
        name: {} if results.record.best is None else flatten(results.best.plain_config)
        for name, results in sweeps.items()
    }
    keys = _differing(known)
    better = "higher" if first.mode == "max" else "lower"
    yield {"text": f"Compared by {metric} ({better} is better). {_winner(sweeps, metric, first.mode)}"}
    head = ["sweep", "trials", "states", f"best {metric}", "by trial", "time"]
    rows = [
        [*_row(number, name, results), *(plain(known[name].get(key)) for key in keys[:_MOST_KEYS])]
        for number, (name, results) in enumerate(sweeps.items())
    ]
    yield {"names": [*head, *keys[:_MOST_KEYS]], "rows": rows}
    if keys:
        said = "Columns after the time: keys in which the best configurations differ."
        yield {"text": said + _shown(_MOST_KEYS, keys)}
    settings = {
        name: {key: value for key, value in settings_of(results).items() if key in SETTINGS}
        for name, results in sweeps.items()
    }
    if names := _differing(settings):
        rows = [
            [_link(number, name), *(plain(settings[name].get(key)) for key in names)]
            for number, name in enumerate(sweeps)
        ]
        yield {"title": "Settings that differ", "names": ["sweep", *names], "rows": rows}
    yield from _spaces(sweeps)


def _spaces(sweeps: Mapping[str, SweepResults]) -> Iterator[Block]:
    """Yield the search spaces side by side; keys in which they differ are marked and come first."""
    spaces = {name: settings_of(results).get("space") or {} for name, results in sweeps.items()}
    differing = _differing(spaces)
    keys = list(dict.fromkeys([*differing, *(key for space in spaces.values() for key in space)]))
    if not keys:
        return
    said = "They are the same." if not differing else f"Marked: the keys in which they differ ({len(differing)})."
    rows = [
        [f"{'≠ ' if key in differing else ''}{key}", *(plain(_domain(space.get(key))) for space in spaces.values())]
        for key in keys[:_MOST_SPACE]
    ]
    yield {"title": "Search spaces", "text": said + _shown(_MOST_SPACE, keys)}
    yield {"names": ["key", *spaces], "rows": rows}


def _shown(most: int, keys: Sequence[str]) -> str:
    return f" The first {most} of {len(keys)} keys are shown." if len(keys) > most else ""


def _domain(described: Any) -> Any:
    """Return a domain as sweep.yaml has it in one line: ``loguniform 0.001, 0.1``."""
    if isinstance(described, Mapping):
        return ", ".join(f"{name} {_domain(value)}" for name, value in described.items())
    return ", ".join(map(str, described)) if isinstance(described, list) else described


def _row(number: int, name: str, results: SweepResults) -> list[Any]:
    state = results.record
    best = None if state.best is None else results.best
    words = {name: outcome.counted or outcome.verb or name.lower() for name, outcome in OUTCOMES.items()}
    states = [f"{count} {words[name]}" for name, count in state.counts.items() if count]
    return [
        _link(number, name),
        len(results),
        ", ".join(states),
        None if best is None else plain(best.value),
        None if best is None else best.index,
        f"{elapsed(age(state, state.updated or 0.0))}{'' if state.ended else ' so far'}",
    ]


def _winner(sweeps: Mapping[str, SweepResults], metric: str, mode: str) -> str:
    found = {name: results.best.value for name, results in sweeps.items() if results.record.best is not None}
    if not found:
        return f"No trial that did not fail has reported a number as {metric} yet."
    best = (max if mode == "max" else min)(value for value in found.values() if value is not None)
    names = " and ".join(name for name, value in found.items() if value == best)
    return f"Best: {names} with {compact(best)}."


def _link(number: int, name: str) -> Block:
    return {"text": name, "href": f"#sweep-{number}", "colour": colour_of(number)}


def _differing(known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all, in order."""
    keys = dict.fromkeys(key for values in known.values() for key in values)
    return [key for key in keys if len({repr(values.get(key)) for values in known.values()}) > 1]


def _sweep(number: int, name: str, results: SweepResults) -> Section:
    """Return the section of one sweep: trials by state, its best configuration and trials, and how it was run."""
    metric = view.metric_of(results.record)
    blocks: list[Block] = [cards(results)]
    if (failed := results.ahead) is not None:
        said = f"Trial {failed.index}, which {failed.outcome}, had reported {metric}={compact(failed.value)}."
        blocks.append({"text": said})
    if results.record.best is not None:
        title = f"Best: trial {results.best.index}, with {metric} {compact(results.best.value)}"
        blocks.append({"title": title, "pairs": plain_pairs(flatten(results.best.plain_config))})
        best = results.top(_TOP)
        keys = _differing({trial.id: flatten(trial.plain_config) for trial in best})[:_MOST_KEYS]
        configs = [flatten(trial.plain_config) for trial in best]
        rows = [
            [trial.index, trial.state, plain(trial.value), *(plain(config.get(key)) for key in keys)]
            for trial, config in zip(best, configs, strict=True)
        ]
        listed = {"names": ["trial", "state", f"best {metric}", *keys], "rows": rows}
        blocks.append({"title": f"Its best {counted(len(best), 'trial')}", "inside": [listed]})
    elif failed is None:
        blocks.append({"text": f"No trial has reported a number as {metric} yet."})
    return {"title": name, "colour": colour_of(number), "blocks": [*blocks, how_it_was_run(results)]}
