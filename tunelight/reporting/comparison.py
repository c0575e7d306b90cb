"""Several sweeps as one page: their best values against what was spent, a table of them, and a section for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tunelight.errors import SettingsError
from tunelight.record import OUTCOMES
from tunelight.reporting.how_run import SETTINGS, how_it_was_run, told
from tunelight.reporting.markup import card, document, pairs, plot, safe, table, td
from tunelight.reporting.words import compact, elapsed
from tunelight.results.figures.compared import best_by_time, best_by_trials, best_by_workers, colour_of
from tunelight.results.figures.data import judged_by
from tunelight.results.figures.spending import spending
from tunelight.results.words import counted
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.results import SweepResults

_MOST_KEYS: Final = 20
"""Keys in which the best configurations differ that have a column."""
_MOST_SPACE: Final = 100
_TOP: Final = 10
"""Trials of a sweep that its section lists."""


def comparison(several: Sequence[SweepResults]) -> str:
    """Return the HTML of a report that compares sweeps. Raises: SettingsError, see :func:`compared`."""
    headings, sections = compared(several)
    return document(f"{counted(len(several), 'sweep')} compared", headings, sections)


def compared(several: Sequence[SweepResults]) -> tuple[dict[str, str], list[str]]:
    """Return the headings of a comparison of sweeps, by the ids of its sections, and the sections.

    Raises: SettingsError for none, for a sweep that is given twice, and where their metrics or modes differ.
    """
    _check(several)
    sweeps = _named(several)
    names = list(sweeps)
    headings = {
        "sweeps": "Sweeps",
        "by_time": "Wall time",
        "by_workers": "Worker-hours",
        "by_trials": "Trials",
        **{f"sweep-{number}": name for number, name in enumerate(names)},
    }
    sections = [
        *_overview(sweeps),
        plot("by_time", best_by_time(sweeps)),
        plot("by_workers", best_by_workers(sweeps)),
        plot("by_trials", best_by_trials(sweeps)),
        *(part for number, name in enumerate(names) for part in _sweep(number, name, sweeps[name])),
    ]
    return headings, sections


def _check(several: Sequence[SweepResults]) -> None:
    if not several:
        raise SettingsError("A report needs a sweep, but the list of them is empty. Give one, or several to compare.")
    seen: set[Any] = set()
    for results in several:
        if results.folder in seen:
            raise SettingsError(f"The sweep {results.folder} is given twice. Give each sweep once.")
        seen.add(results.folder)
    judged = {results.folder: judged_by(results) for results in several}
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


def _overview(sweeps: Mapping[str, SweepResults]) -> Iterator[str]:
    """Yield the table of sweeps, and that of the settings in which they differ."""
    metric, mode = judged_by(next(iter(sweeps.values())))
    known = {
        name: {} if results.record.best is None else flatten(results.best.plain_config)
        for name, results in sweeps.items()
    }
    keys = _differing(known)
    more = f" The first {_MOST_KEYS} of {len(keys)} keys are shown." if len(keys) > _MOST_KEYS else ""
    yield '<section id="sweeps"><h2>Sweeps</h2>'
    better = "higher" if mode == "max" else "lower"
    yield f"<p>Compared by {safe(metric)} ({better} is better). {_winner(sweeps, metric, mode)}</p>"
    head = ["sweep", "trials", "states", f"best {metric}", "by trial", "time", "worker-hours"]
    rows = []
    for number, (name, results) in enumerate(sweeps.items()):
        rows.append([*_row(number, name, results), *(td(known[name].get(key)) for key in keys[:_MOST_KEYS])])
    yield table([*head, *keys[:_MOST_KEYS]], rows)
    if keys:
        yield f"<p>Columns after the worker-hours: keys in which the best configurations differ.{more}</p>"
    settings = {
        name: {key: value for key, value in told(results).items() if key in SETTINGS}
        for name, results in sweeps.items()
    }
    if names := _differing(settings):
        rows = [
            [_link(number, name), *(td(settings[name].get(key)) for key in names)] for number, name in enumerate(sweeps)
        ]
        yield "<h3>Settings that differ</h3>"
        yield table(["sweep", *names], rows)
    yield from _spaces(sweeps)
    yield "</section>"


def _spaces(sweeps: Mapping[str, SweepResults]) -> Iterator[str]:
    """Yield the search spaces side by side; keys in which they differ are marked and come first."""
    spaces = {name: told(results).get("space") or {} for name, results in sweeps.items()}
    differing = _differing(spaces)
    keys = [*differing, *(key for key in dict.fromkeys(key for one in spaces.values() for key in one))]
    keys = list(dict.fromkeys(keys))
    if not keys:
        return
    more = f" The first {_MOST_SPACE} of {len(keys)} keys are shown." if len(keys) > _MOST_SPACE else ""
    said = "They are the same." if not differing else f"Marked: the keys in which they differ ({len(differing)})."
    yield f"<h3>Search spaces</h3><p>{said}{more}</p>"
    rows = [
        [
            f"<td>{'&ne; ' if key in differing else ''}{safe(key)}</td>",
            *(td(_domain(one.get(key))) for one in spaces.values()),
        ]
        for key in keys[:_MOST_SPACE]
    ]
    yield table(["key", *spaces], rows)


def _domain(described: Any) -> Any:
    """Return a domain as sweep.yaml has it in one line: ``loguniform 0.001, 0.1``."""
    if isinstance(described, Mapping):
        return ", ".join(f"{name} {_domain(value)}" for name, value in described.items())
    return ", ".join(map(str, described)) if isinstance(described, list) else described


def _row(number: int, name: str, results: SweepResults) -> list[str]:
    state = results.record
    best = None if state.best is None else results.best
    wall, workers = spending(results).total
    return [
        _link(number, name),
        td(len(results)),
        td(", ".join(f"{count} {_word(key)}" for key, count in state.counts.items() if count)),
        td(None if best is None else best.value),
        td(None if best is None else best.index),
        f"<td>{elapsed(wall)}{'' if state.ended else ' so far'}</td>",
        td(workers / 3600),
    ]


def _word(state: str) -> str:
    return OUTCOMES[state].counted or OUTCOMES[state].verb or state.lower()


def _winner(sweeps: Mapping[str, SweepResults], metric: str, mode: str) -> str:
    found = {name: results.best.value for name, results in sweeps.items() if results.record.best is not None}
    if not found:
        return f"No trial that did not fail has reported a number as {safe(metric)} yet."
    best = (max if mode == "max" else min)(value for value in found.values() if value is not None)
    names = " and ".join(name for name, value in found.items() if value == best)
    return f"Best: {safe(names)} with {safe(compact(best))}."


def _link(number: int, name: str) -> str:
    return f'<td>{_swatch(number)} <a href="#sweep-{number}">{safe(name)}</a></td>'


def _swatch(number: int) -> str:
    return f'<span class="swatch" style="background:{colour_of(number)}"></span>'


def _differing(known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all, in order."""
    keys = dict.fromkeys(key for values in known.values() for key in values)
    return [key for key in keys if len({repr(values.get(key)) for values in known.values()}) > 1]


def _sweep(number: int, name: str, results: SweepResults) -> Iterator[str]:
    """Yield the section of one sweep: trials by state, its best configuration and trials, and how it was run."""
    metric, _ = judged_by(results)
    yield f'<section id="sweep-{number}"><h2>{_swatch(number)} {safe(name)}</h2><dl class="cards">'
    yield card("trial" if len(results) == 1 else "trials", str(len(results)))
    if results.repetitions:
        yield card("repetitions", str(len(results.repetitions)))
    for key, count in results.record.counts.items():
        if count:
            yield card(key.lower(), str(count), OUTCOMES[key].colour)
    yield "</dl>"
    failed = results.ahead
    if failed is not None:
        said = f"Trial {failed.index}, which {failed.outcome}, had reported {metric}={compact(failed.value)}."
        yield f"<p>{safe(said)}</p>"
    if results.record.best is not None:
        yield f"<h3>Best: trial {results.best.index}, with {safe(metric)} {safe(compact(results.best.value))}</h3>"
        yield pairs("configuration", flatten(results.best.plain_config).items())
        best = results.top(_TOP)
        keys = _differing({trial.id: flatten(trial.plain_config) for trial in best})[:_MOST_KEYS]
        rows = [
            [
                td(trial.index),
                td(trial.state),
                td(trial.value),
                *(td(flatten(trial.plain_config).get(key)) for key in keys),
            ]
            for trial in best
        ]
        yield f"<details><summary>Its best {counted(len(best), 'trial')}</summary>"
        yield table(["trial", "state", f"best {metric}", *keys], rows)
        yield "</details>"
    elif failed is None:
        yield f"<p>No trial has reported a number as <b>{safe(metric)}</b> yet.</p>"
    yield f"{how_it_was_run(results)}</section>"
