"""What the workers of a trial used, over time and when that was last recorded, as a section of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tunelight.reporting.drawing import drawing
from tunelight.reporting.markup import table, td
from tunelight.reporting.words import elapsed

if TYPE_CHECKING:
    from tunelight.record import TrialState

_LAST: Final = {
    "cpu": "CPUs",
    "memory": "memory MB",
    "gpu": "GPUs busy",
    "gpu_memory": "GPU memory MB",
    "gpu_memory_total": "of MB",
}
_OVER_TIME: Final = {
    "gpu": "part of the time in which its GPUs were busy",
    "gpu_memory": "MB of GPU memory of the worker that used most",
    "cpu": "CPUs in use, as a mean of its workers",
    "memory": "MB of memory of the worker that used most",
}
_MOST_POINTS: Final = 60
"""Of a line; above it, it is thinned out evenly."""


def usage_section(state: TrialState) -> Iterator[str]:
    """Yield what a trial's workers used, where samples are recorded."""
    shown = {key: name for key, name in _LAST.items() if any(one.get(key) is not None for one in state.usage)}
    if not shown:
        return
    rows = [[td(rank), *(td(one.get(key)) for key in shown)] for rank, one in enumerate(state.usage)]
    yield f"<h4>What its workers used</h4>{table(['rank, last', *shown.values()], rows)}"
    for name, words in _OVER_TIME.items():
        yield _over_time(state, name, words)


def _over_time(state: TrialState, name: str, words: str) -> str:
    """Return a quantity of a trial over time as a line from 0 on; nothing for fewer than two samples."""
    values = [sample[name] for sample in state.samples if name in sample]
    if len(values) < 2:
        return ""
    step = math.ceil(len(state.samples) / _MOST_POINTS)
    begin, end = state.samples[0]["time"], state.samples[-1]["time"]
    points = [(sample["time"], sample.get(name)) for sample in state.samples[::step]]
    top = 1.0 if name == "gpu" else max(values)
    return drawing(points, f"{words}, over {elapsed(max(0.0, end - begin))}", (0.0, top or 1.0))
