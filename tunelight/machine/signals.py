"""Stop a sweep by signal: the first Ctrl-C or SIGTERM asks it to stop and says so at once, the second ends it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from tunelight.errors import SettingsError

_STOPPING = "Stopping: what was reported is kept, and results follow. {again} ends at once."
_LEAVING = "SIGTERM. Trials write their checkpoints, and then the sweep ends. A second signal ends at once."
GRACE_VARIABLE: Final = "TUNELIGHT_GRACE_S"
GRACE_S: Final = 25.0
"""How long trials may take to leave after SIGTERM; Kubernetes and Slurm kill a process after 30 s."""


def grace_s() -> float:
    """Return how long trials may take to leave, in seconds. Raises: SettingsError where the variable is no number."""
    given = os.environ.get(GRACE_VARIABLE, GRACE_S)
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise SettingsError(f"{GRACE_VARIABLE} must be a number of seconds, 0 or more, not {given!r}.")
    return seconds


class StopSignals:
    """The signals that stop a sweep, as long as this context is open. Outside of the main thread there are none.

    Ray Tune stops at SIGUSR1, for which it has a handler while it runs; before that, a signal raises KeyboardInterrupt.
    ``say`` shows a line to the person who runs the sweep. Runs on: driver.
    """

    def __init__(self, say: Callable[[str], object] | None = None) -> None:
        self.received: signal.Signals | None = None
        """The first signal that came."""
        self.graceful = False
        """Whether SIGTERM leaves Tune running for a while: trials are told to leave with a checkpoint."""
        self._say = say or to_stderr
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
            self._before = {number: signal.getsignal(number) for number in numbers}
            for number in (signal.SIGINT, signal.SIGTERM):
                if self._before[number] is not signal.SIG_IGN:  # a shell's background job ignores Ctrl-C
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # Tune leaves its own behind

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = received = signal.Signals(number)
        again = "A second Ctrl-C" if received is signal.SIGINT else "A second signal"
        advice = _STOPPING.format(again=again)
        graceful = received is signal.SIGTERM and self.graceful
        text = _LEAVING if graceful else advice if received is signal.SIGINT else f"{received.name}. {advice}"
        try:
            self._say(text)
        except (Exception, SystemExit):  # noqa: BLE001 - in the middle of another line, or standard output is closed
            to_stderr(text)
        if graceful:
            return
        if signal.getsignal(signal.SIGUSR1) is self._before[signal.SIGUSR1]:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGUSR1)


def to_stderr(text: str) -> None:
    """Write a line where no buffer is in the way: a handler may run in the middle of another write."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
