"""show --follow --json: what happens in a sweep, one JSON object a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tunelight.record import RecordFollower, driver_of
from tunelight.record.state import metric_value

_LOOK_S: Final = 0.2
_GRACE_S: Final = 5.0
"""How long a record may have neither an end nor a driver: a driver may be about to begin, or to write the end."""
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
    follower = RecordFollower(folder, brief=True)
    alone_since: float | None = None
    while True:
        for line in follower.look():
            if (event := _event(line, follower.state.sweep)) is not None and line["kind"] != "end":
                yield event
        if follower.state.ended is not None:
            yield {"type": "end", "time": follower.state.updated, "reason": follower.state.ended}
            return
        driver = driver_of(folder)
        alive = driver is not None and driver.alive
        alone_since = None if alive else alone_since or time.monotonic()
        if alone_since is not None and time.monotonic() - alone_since >= _GRACE_S:
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
        event["value"] = metric_value(line["metrics"], sweep.get("metric"))
    return event
