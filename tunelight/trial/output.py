"""What a script prints, shown on the driver while it runs once, in place of a table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ray
from ray.tune import Callback
from ray.tune.progress_reporter import TrialProgressCallback

from tunelight.compat.ray import trial_actor
from tunelight.gang.gang import WRITE_LIMIT_S
from tunelight.gang.output import LOG
from tunelight.machine.notebook import write
from tunelight.messages import Text

_LOOK_S: Final = 0.1
_AT_ONCE: Final = 1 << 20
"""Bytes that are read in one go."""


class OutputCallback(TrialProgressCallback):  # type: ignore[misc,unused-ignore]
    """Writes the log of a sweep's only trial to standard output, each line with its rank in front.

    The log is read where the trial's folder is on this machine or on a disk that it shares. ``folder``: the sweep's;
    None: nothing is written. Tune takes it in place of its own callback, which prints a line at the end of a trial that
    was stopped by command. Runs on: driver.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__(metric=None)
        self._folder = folder
        self._read = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Begin to follow the log."""
        if self._folder is not None and self._thread is None:
            log = self._folder / f"trial_{trial.trial_id}" / LOG
            self._thread = threading.Thread(target=self._follow, args=(log,), name="tunelight-output", daemon=True)
            self._thread.start()

    def log_result(self, *_: Any, **__: Any) -> None:
        """Print nothing of a trial's results."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print nothing of a trial's end."""

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


# --- Waits at the end of a sweep for checkpoints that the last stopped trials are still writing ---


_SIGNAL_LOOK_S = 1.0
"""How often to look whether a signal has come."""


class SettlingCallback(Callback):
    """Lets heads end their stopped trials before Tune ends the heads, to which it gives 10 s only. Runs on: driver.

    Before that a head ends its last trial when it gets another, or is ended. ``finished`` returns whether no trial
    lives or is to come; ``stopped``, whether a signal has stopped the sweep, which then waits no longer.
    """

    def __init__(
        self,
        finished: Callable[[], bool],
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._finished, self._stopped, self._clock = finished, stopped, clock
        self._ended: dict[Any, float] = {}
        """The heads of ended trials, each with the time at which its last trial ended."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Remember the trial's head. Called by Tune just before it stops the trial there."""
        now, head = self._clock(), trial_actor(trial)
        self._ended = {actor: since for actor, since in self._ended.items() if now - since < WRITE_LIMIT_S}
        if head is not None:
            self._ended[head] = now

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Wait for the heads once no trial is left. Called by Tune at the end of each step of its loop."""
        if self._ended and self._finished():
            settling = [head.settle.remote() for head in self._ended]
            self._ended = {}
            end = self._clock() + WRITE_LIMIT_S
            while settling and self._clock() < end and not self._stopped():
                _, settling = ray.wait(settling, num_returns=len(settling), timeout=_SIGNAL_LOOK_S)

    def __getstate__(self) -> dict[str, Any]:
        return {"_ended": {}}  # Tune pickles its callbacks; the heads end with Tune
