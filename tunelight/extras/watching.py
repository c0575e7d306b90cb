"""watch(): follow a sweep that another process runs, by its record alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console

from tunelight.extras.attach import RecordFollower
from tunelight.record import RUNNING, TERMINAL, Owner, SweepState, driver_of
from tunelight.reporting.display import Display
from tunelight.reporting.words import elapsed

_LOOK_S: Final = 0.5
_GRACE_S: Final = 5.0
"""How long a record may have neither end nor driver: a driver may be about to take the lock, or write the end."""


def watch(
    folder: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    console: Console | None = None,
    every_s: float = _LOOK_S,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
) -> SweepState:
    """Show a sweep that another process runs, as that process would, until it ends; return its state.

    The state's ``ended`` says how it ended ("finished", "interrupted", "time budget"). It is None if the driver
    died, or does not touch its lock on another host; a line says so. An ended sweep is shown once.

    Args:
        folder: the sweep's folder, storage/name. console: where to write (standard output).
        columns: the table's columns after trial and state; None chooses those for which there is room.
        every_s: seconds between two reads of the record.

    Raises: StorageError if it is no sweep, or its record is damaged; KeyboardInterrupt after Ctrl-C, with the
        terminal as it was. Runs on: any process that sees the folder.
    """
    follower = RecordFollower(folder)
    follower.look()
    display = Display(lambda: follower.state, columns=columns, console=console, clock=clock)
    display.total = follower.state.sweep.get("num_samples")
    last, alone_since = "(watching ended)", None
    try:
        while True:
            if follower.state.ended is not None:
                last = ""
                break
            driver = driver_of(follower.folder)
            alone_since = (alone_since or clock()) if driver is None or not driver.alive else None
            if alone_since is not None and clock() - alone_since >= _GRACE_S:
                last = _left(follower, driver, clock())
                break
            display.tick()
            sleep(every_s)
            _take(follower, display)
    finally:
        display.close(last or None)
    return follower.state


def _take(follower: RecordFollower, display: Display) -> None:
    """Read new lines of the record, and show what they say."""
    for line in follower.look():
        display.touch()
        if line["kind"] == "sweep":
            display.total = follower.state.sweep.get("num_samples")
        if line["kind"] == "state" and line["state"] in TERMINAL:
            display.trial_ended(line["trial"])
        elif line["kind"] == "state" and line["state"] == RUNNING:
            display.trial_goes_on(line["trial"])
    display.say_notes()


def _left(follower: RecordFollower, driver: Owner | None, now: float) -> str:
    """Return the line on a sweep that has not ended, and that no driver runs."""
    who = f"Its driver ({driver}) is gone" if driver is not None else "No driver runs it"
    since = follower.state.updated
    when = f", and its record was written last {elapsed(max(0.0, now - since))} ago" if since is not None else ""
    name = follower.folder.name
    return f"Sweep {name} has not ended. {who}{when}. To go on with it: tunelight.resume({str(follower.folder)!r})."
