"""SweepControl: the one object by which the parts of a running sweep reach those that are made after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tunelight.machine.signals import StopSignals, to_stderr

if TYPE_CHECKING:
    from tunelight.record import RecordCallback
    from tunelight.sweep.queue import SweepSearch


class SweepControl:
    """It is made first, and passed to each part as that is made; ``begin`` completes it. Runs on: driver."""

    def __init__(self) -> None:
        self.signals = StopSignals(self.say)
        self.ends: str | None = None
        """Why the sweep is ended early, as the record will say; None: it is not."""
        self._record: RecordCallback | None = None
        self._queue: SweepSearch | None = None
        self._show: Callable[[str], object] = to_stderr

    def begin(self, record: RecordCallback, queue: SweepSearch, show: Callable[[str], object] | None) -> None:
        """Take the record, the queue of trials, and what shows a line (None: standard error)."""
        self._record, self._queue, self._show = record, queue, show or to_stderr

    def complete(self) -> bool:
        """Tell whether no trial is left to be made."""
        return self._queue is None or self._queue.complete

    def say(self, text: str) -> None:
        """Show a line to the person who runs the sweep: above the live table, once there is one."""
        self._show(text)

    def change(self, *change: Any) -> None:
        """Record that a trial goes on with another configuration. In a replay it is recorded already."""
        if self._record is not None:
            self._record.change(*change)
