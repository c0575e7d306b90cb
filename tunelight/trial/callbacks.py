"""Callbacks that a sweep gives Tune for its own ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import ray
from ray.tune import Callback
from ray.tune.progress_reporter import TrialProgressCallback

from tunelight.compat.ray import trial_actor
from tunelight.gang.gang import WRITE_LIMIT_S

_SIGNAL_LOOK_S: Final = 1.0
"""How often to look whether a signal has come."""


class SilentCallback(TrialProgressCallback):  # type: ignore[misc,unused-ignore]
    """Prints nothing. Tune takes it in place of its own, which prints a line at the end of a trial that was stopped."""

    def __init__(self) -> None:
        super().__init__(metric=None)

    def log_result(self, *_: Any, **__: Any) -> None:
        """Print nothing of a trial's results."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print nothing of a trial's end."""

    def close(self) -> None:
        """Stop. Callable more than once, and without Tune."""


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
