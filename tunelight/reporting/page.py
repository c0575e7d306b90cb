"""Sweeps as one HTML file that needs nothing else: overview, figures, a table of all trials and a section for each."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tunelight.errors import first_of
from tunelight.record import OUTCOMES, percent, write_text
from tunelight.reporting.comparison import comparison
from tunelight.reporting.how_run import how_it_was_run
from tunelight.reporting.markup import CELL, card, document, pairs, plot, remarks, safe
from tunelight.reporting.trial_sections import ERROR_CHARS, chosen, reported, trial_sections, when
from tunelight.reporting.trial_table import trial_table
from tunelight.reporting.words import compact, elapsed
from tunelight.results.figures.data import columns, judged_by
from tunelight.results.repeats import lines_of
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.results import SweepResults

FILE: Final = "report.html"
_MOST_NOTES: Final = 100
_MOST_ERRORS: Final = 200
_MOST_FRONT: Final = 30
HEADINGS: Final = {
    "history": "History",
    "learning_curves": "Learning curves",
    "importances": "Importances",
    "parallel": "Parallel coordinates",
    "slices": "Slices",
    "contour": "Contour",
    "timeline": "Timeline",
    "pareto": "Pareto front",
}
_AXIS: Final = 100
"""Pixels that an axis of parallel coordinates needs at least."""
_SLICE: Final = 190
"""Pixels that a slice needs at least."""
_IN_A_ROW: Final = 4


def report(results: SweepResults | Sequence[SweepResults], path: str | os.PathLike[str]) -> Path:
    """Write a report of a sweep, or a comparison of several, as one HTML file, which works offline; return its path.

    Args:
        results: of a sweep, also one that still runs, that failed, or that has no trial yet; or a list of several,
            which are compared by their first metric.
        path: the file; of a folder, ``report.html`` in it.

    The file holds plotly.js (5 MB) and all data; text of configurations, errors and logs is shown as it is, never run.
    Raises: SettingsError where several sweeps have different metrics or modes, before anything is written; StorageError
    where the file cannot be written. Runs on: driver, or anywhere that has the sweep's folder.
    """
    from tunelight.results import SweepResults

    target = Path(path).expanduser()
    if target.is_dir():
        target = target / FILE
    several = [results] if isinstance(results, SweepResults) else list(results)
    write_text(target.absolute(), page(several[0]) if len(several) == 1 else comparison(several))
    return target.absolute()


def page(results: SweepResults) -> str:
    """Return the HTML of one sweep's report."""
    shown, which = chosen(results)
    opened = {trial.index for trial in shown}
    headings = {"overview": "Overview", **HEADINGS, "trials": "Trials"}
    sections = [
        *_overview(results),
        *figure_sections(results).values(),
        '<section id="trials"><h2>Trials</h2>',
        *trial_table(results, opened),
        *([f"<p>Click on a trial to open it below. {safe(which)}</p>"] if shown else []),
        *trial_sections(results, shown),
        "</section>",
        *_failures(results, opened),
        *_notes(results),
    ]
    return document(results.name, headings, sections)


def figure_sections(results: SweepResults) -> dict[str, str]:
    """Return a section with each figure of a sweep, by the figure's name."""
    from tunelight.results.figures import FIGURES
    from tunelight.results.figures.parameters import MOST_AXES

    varied = len(columns(results.trials))
    least = {"parallel": _AXIS * (min(varied, MOST_AXES) + 1), "slices": _SLICE * min(_IN_A_ROW, varied)}
    return {name: plot(name, draw(results), least.get(name, 0)) for name, draw in FIGURES.items()}


def _overview(results: SweepResults) -> Iterator[str]:
    metric, mode = judged_by(results)
    state = results.record
    yield '<section id="overview"><h2>Overview</h2><dl class="cards">'
    yield card("trial" if len(results) == 1 else "trials", str(len(results)))
    if results.repetitions:
        yield card("repetitions", str(len(results.repetitions)))
    for name, count in state.counts.items():
        if count:
            yield card(name.lower(), str(count), OUTCOMES[name].colour)
    if state.started is not None and state.updated is not None:
        yield card("took" if state.ended else "so far", elapsed(state.updated - state.started))
        yield card("trained", elapsed(sum(trial.seconds for trial in results.every_trial)))
    yield "</dl>"
    if not state.ended:
        yield "<p>The sweep had not ended when this was written.</p>"
    failed = results.ahead
    if state.best is None and failed is None:
        yield f"<p>No trial has reported a number as <b>{safe(metric)}</b> yet.</p>"
    elif state.best is None:
        yield f"<p>Each trial that has reported a number as <b>{safe(metric)}</b> has failed.</p>"
    else:
        best = results.best
        word = {"min": "lowest", "max": "highest"}.get(mode, "best")
        whose = "all trials that did not fail" if failed else "all reports"
        again = list(lines_of(state))
        whose = "the configuration with the best mean" if again else whose
        yield f"<h3>Best: trial {best.index}, with the {word} {safe(metric)} of {whose}</h3>"
        yield f'<p class="best">{safe(compact(best.value))}</p><p>at {safe(when(best.metrics))}</p>'
        yield f'<div class="pair">{pairs("configuration", flatten(best.plain_config).items())}'
        yield f"{pairs('its report', reported(best))}</div>"
        yield "".join(f"<p>{safe(line)}</p>" for line in again)
    if state.best is not None and len(results.objectives) > 1:
        names = " and ".join(f"{name} ({mode})" for name, mode in results.objectives)
        front = [str(trial.index) for trial in results.pareto()]
        said = f"On the Pareto front of {names}: {first_of(front, _MOST_FRONT)}"
        yield f"<p>{safe(said)}</p>"
    if failed is not None:
        said = f"Trial {failed.index}, which {failed.outcome}, had reported {metric}={compact(failed.value)}."
        yield f"<p>{safe(said)}</p>"
    if results.gpus_busy is not None:
        yield f"<p>GPUs {percent(results.gpus_busy)} busy.</p>"
    yield remarks(results.tags, [note for note in results.notes if note.trial is None])
    yield f"{how_it_was_run(results)}</section>"


def _failures(results: SweepResults, opened: Collection[int]) -> Iterator[str]:
    """Yield what failed: links to the trials' sections, with the errors of those that have none."""
    failed = [trial for trial in results.every_trial if trial.error]
    if failed:
        yield f'<section id="failures"><h2>What failed ({len(failed)})</h2>'
        for trial in failed[:_MOST_ERRORS]:
            error = trial.error or ""
            first = f": {next(iter(error.splitlines()), '')[:CELL]}"
            if trial.index in opened:
                link = f'<a href="#trial-{trial.index}">trial {trial.index}</a>'
                yield f'<p class="line">{link}, {trial.state}{safe(first)}</p>'
            else:
                yield f"<details><summary>trial {trial.index}, {trial.state}{safe(first)}</summary>"
                yield f"<pre>{safe(error[-ERROR_CHARS:])}</pre></details>"
        if len(failed) > _MOST_ERRORS:
            yield f"<p>{len(failed) - _MOST_ERRORS} more are in the table; results.errors has them all.</p>"
        yield "</section>"


def _notes(results: SweepResults) -> Iterator[str]:
    said: dict[str, list[int | None]] = {}
    for trial_id, text in results.record.notes:
        trial = results.record.trials.get(trial_id or "")
        said.setdefault(text, []).append(trial.index if trial else None)
    if said:
        yield f'<section id="notes"><h2>What was said on the way ({len(said)})</h2><ul>'
        for text, who in list(said.items())[:_MOST_NOTES]:
            first = "" if who[0] is None else f"trial {who[0]}: "
            again = len(who) - 1
            more = "" if not again else " (and once more)" if again == 1 else f" (and {again} times more)"
            yield f"<li>{first}{safe(text)}{more}</li>"
        yield "</ul></section>"
