"""Metrics of a report as plain values: the trial's head and Tune have neither torch nor a GPU to read others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tunelight.errors import MetricError, guess
from tunelight.messages import RESULT_KEY

_RESERVED = frozenset({"done", "should_checkpoint", RESULT_KEY})
"""Names that Tune gives a meaning to."""
_EXACT: dict[type, Callable[[Any], Any]] = {bool: bool, int: int.__int__, float: float.__float__, str: str.__str__}
"""Others cannot read values of classes that derive from these, such as a script's Enum."""


def plain_metrics(metrics: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    """Return metrics with plain values; ``note`` is called with a warning for each that is recorded as text.

    Raises: MetricError for anything but a mapping, and for names that are reserved.
    """
    if not isinstance(metrics, Mapping):
        raise MetricError(f"A report holds metrics by name, report({{'loss': 0.5}}), not {metrics!r}.")
    plain = {str(name): _plain(str(name), value, note) for name, value in metrics.items()}
    if taken := _RESERVED & plain.keys():
        raise MetricError(f"No metric may be called {', '.join(sorted(taken))}: Ray Tune would obey it.")
    return plain


def check_metric(metric: str | None, metrics: Mapping[str, Any]) -> None:
    """Raise MetricError if the sweep's metric is missing from a trial's first report."""
    if metric is not None and metric not in metrics:
        raise MetricError(
            f"The sweep is judged by metric {metric!r}, but the trial's first report holds "
            f"{', '.join(sorted(metrics)) or 'no metric at all'}."
            f"{guess(metric, metrics)} Report it, or name another with metric=."
        )


def _plain(name: str, value: Any, note: Callable[[str], None]) -> Any:
    for kind, exact in _EXACT.items():
        if isinstance(value, kind):
            return exact(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(name, inner, note) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(name, item, note) for item in value)
    if callable(getattr(value, "item", None)) and math.prod(getattr(value, "shape", ()) or (1,)) == 1:
        return value.item()
    if value is None or type(value).__module__.partition(".")[0] == "numpy":
        return value
    if callable(getattr(value, "tolist", None)):
        return tuple(value.tolist())  # Tune's TensorBoard logger tries to draw a list
    note(f"The metric {name!r} is no number but a {type(value).__qualname__}: its text is recorded.")
    return repr(value)
