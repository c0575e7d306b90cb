"""A sweep's note of files that more than one of its trials has written beside the script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Callback

from tunelight.extras.scripts.files import FILE, overwritten, read


class OverwrittenCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Notes once which files of the working directory several trials have written. Runs on: driver.

    Args:
        folder: the sweep's.
        note: adds a note to its record.
    """

    def __init__(self, folder: Path, note: Callable[[str], object]) -> None:
        self._file, self._note, self._said = folder / FILE, note, False

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Look at what the trials that have ended have written."""
        if not self._said and (text := overwritten(read(self._file))):
            self._said = True
            self._note(text)
