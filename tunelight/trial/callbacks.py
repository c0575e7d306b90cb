"""Callbacks that a sweep gives Tune for its own ends."""

from __future__ import annotations

from typing import Any

from ray.tune.progress_reporter import TrialProgressCallback


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
