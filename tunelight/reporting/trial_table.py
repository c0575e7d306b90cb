"""The table of a report that has a row for each trial."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from tunelight.record import metric_value
from tunelight.reporting.markup import safe, td
from tunelight.results.figures.data import judged_by, progress
from tunelight.settings.dotted import flatten

if TYPE_CHECKING:
    from tunelight.results import SweepResults, TrialResult

_MOST_KEYS: Final = 40
"""Keys of the configurations that have a column."""


def trial_table(results: SweepResults, opened: Collection[int]) -> Iterator[str]:
    """Yield the table of all trials; those whose index is in ``opened`` link to their sections.

    Its columns can be chosen, its rows sorted and searched, by the page's script; without it the table stands as it is.
    """
    metric, _ = judged_by(results)
    configs = [flatten(trial.plain_config) for trial in results.every_trial]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    left = f" The first {_MOST_KEYS} of {len(keys)} keys are shown." if len(keys) > _MOST_KEYS else ""
    keys = keys[:_MOST_KEYS]
    further = [f"{name} at best" for name, _ in results.objectives[1:]]
    fixed = ["trial", "state", f"best {metric}", f"last {metric}", *further, "epochs", "seconds", "workers"]
    yield '<p class="tools"><label>Search <input id="search" type="search" placeholder="stopped sgd"></label> '
    yield f'<output id="count"></output>{left}</p>'
    yield from _chooser([*fixed, *keys])
    yield '<div class="wide"><table id="table"><thead><tr>'
    yield "".join(f'<th><button type="button">{safe(name)}</button></th>' for name in [*fixed, *keys])
    yield "</tr></thead><tbody>"
    for trial, config in zip(results.every_trial, configs, strict=True):
        cells = [*_fixed(results, trial, metric), *(config.get(key) for key in keys)]
        first = _link(trial.index) if trial.index in opened else td(trial.index)
        yield f'<tr class="{trial.state}">{first}{"".join(map(td, cells))}</tr>'
    yield "</tbody></table></div>"


def _chooser(names: list[str]) -> Iterator[str]:
    """Yield a box to tick for each column but the first, which names the trial."""
    yield '<details id="columns"><summary>Columns</summary><p>'
    for place, name in enumerate(names[1:], start=1):
        yield f'<label><input type="checkbox" data-column="{place}" checked> {safe(name)}</label> '
    yield "</p></details>"


def _link(index: int) -> str:
    return f'<td class="n" data-n="{index}"><a href="#trial-{index}">{index}</a></td>'


def _fixed(results: SweepResults, trial: TrialResult, metric: str) -> list[Any]:
    last = trial.history[-1] if trial.history else {}
    return [
        trial.state,
        trial.value,
        last.get(metric, metric_value(last, metric)),
        *results.further(trial).values(),
        progress(last) if last else None,
        round(trial.seconds, 1),
        results.record.trials[trial.id].workers,
    ]
