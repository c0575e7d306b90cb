"""What a script prints, shown on the driver while it runs once, in place of a table."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from ray.tune import Callback

from tunelight.gang.output import LOG
from tunelight.machine.processes import write
from tunelight.messages import Text

_LOOK_S: Final = 0.1
_AT_ONCE: Final = 1 << 20
"""Bytes that are read in one go."""


class OutputCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Writes the log of a sweep's only trial to standard output, each line with its rank in front.

    The log is read where the trial's folder is on this machine or on a disk that it shares. ``folder``: the sweep's.
    Runs on: driver.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Begin to follow the log."""
        if self._thread is None:
            log = self._folder / f"trial_{trial.trial_id}" / LOG
            self._thread = threading.Thread(target=self._follow, args=(log,), name="tunelight-output", daemon=True)
            self._thread.start()

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Write what is left."""
        self.close()

    def close(self) -> None:
        """Write what is left, and stop. Callable more than once, and without Tune."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, log: Path) -> None:
        last = False
        while not last:
            last = self._ended.wait(_LOOK_S)
            while (text := self._next(log)) is not None:
                write(Text(text))

    def _next(self, log: Path) -> str | None:
        """Return the whole lines that have come since the last look; None without any."""
        try:
            with log.open("rb") as file:
                file.seek(self._read)
                found = file.read(_AT_ONCE)
        except OSError:
            return None  # it is not there yet, or not on this machine
        whole = found if len(found) == _AT_ONCE or self._ended.is_set() else found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace") or None
