"""The objectives of a sweep: one metric with its mode, or several."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal

from tunelight.errors import SettingsError

Mode = Literal["min", "max"]
MODES: tuple[Mode, ...] = ("min", "max")
_NEAR = {
    **dict.fromkeys(("minimize", "minimise", "minimum", "lower", "less"), "min"),
    **dict.fromkeys(("maximize", "maximise", "maximum", "higher", "more", "greater"), "max"),
}


def paired(metric: str | Sequence[str] | None, mode: Mode | Sequence[Mode] | None) -> tuple[tuple[str, Mode], ...]:
    """Return (metric, mode) of each objective; trials are judged by the first. Empty without a metric.

    A single mode (None: "min") applies to all metrics. ``metric`` and ``mode`` are as in ``tunelight.run`` or
    sweep.yaml.
    """
    metrics = (metric,) if isinstance(metric, str) else tuple(metric or ())
    modes: Sequence[Mode] = (mode or "min",) * len(metrics) if mode is None or isinstance(mode, str) else mode
    return tuple(zip(metrics, modes, strict=True))


def check_metric(name: str, value: Any) -> str | list[str]:
    """Return a metric's name, or a list of names. Raises: SettingsError."""
    metrics = list(value) if isinstance(value, list | tuple) else [value]
    for metric in metrics:
        if not isinstance(metric, str) or not metric:
            raise SettingsError(f"{name} must be text, or a list of texts, not {value!r}.")
    if wrong := [metric for metric in metrics if metric in (*MODES, *_NEAR) and len(metrics) > 1]:
        raise SettingsError(
            f"{name}={value!r} names {len(metrics)} metrics, and {wrong[0]!r} looks like a mode. Say "
            f"metric={metrics[0]!r}, mode={_NEAR.get(wrong[0], wrong[0])!r}."
        )
    if not metrics or len(set(metrics)) < len(metrics):
        raise SettingsError(f"{name} must be one metric, or a list of different ones, not {value!r}.")
    return metrics if isinstance(value, list | tuple) else metrics[0]


def check_mode(name: str, value: Any) -> str | list[str]:
    """Return a mode, or a list of modes. Raises: SettingsError."""
    modes = list(value) if isinstance(value, list | tuple) else [value]
    for mode in modes or [value]:
        if mode not in MODES:
            near = _NEAR.get(str(mode).lower()) or next(iter(get_close_matches(str(mode), MODES, n=1)), None)
            hint = f" Did you mean {near!r}?" if near else ""
            raise SettingsError(f"{name} must be 'min' (less is better) or 'max', not {mode!r}.{hint}")
    return modes if isinstance(value, list | tuple) else modes[0]


def check_paired(metric: Any, mode: Any) -> None:
    """Raise SettingsError for a list of modes that has not one for each metric."""
    if not isinstance(mode, str) and (isinstance(metric, str) or len(metric or ()) != len(mode)):
        raise SettingsError(
            f"mode={mode!r} has to hold 'min' or 'max' for each metric, and metric={metric!r}. Give as many modes as "
            "metrics, in their order, or one for all."
        )
