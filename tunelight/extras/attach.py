"""attach(): take the wheel of a sweep that runs, from any process that reaches its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunelight.errors import CommandError
from tunelight.record import RecordFollower, ask, find_sweep
from tunelight.results import SweepResults
from tunelight.space.plain import to_plain_config


class AttachedSweep:
    """A sweep that another process runs. Its methods wait for the driver's answer, and return it.

    All raise CommandError where the driver refuses, has ended, or does not answer within 30 seconds. What was done is
    in the record, and a resumed sweep keeps it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def stop(self, trial: str | int | None = None) -> str:
        """End a trial now, by its id or number, or ``"best"``; without one the sweep, which can then be resumed."""
        return self._send("stop", trial)

    def enqueue(self, config: Mapping[str, Any]) -> str:
        """Try a configuration next, as one more trial; its keys are dotted, or nested as in the search space."""
        return self._send("enqueue", config=to_plain_config(config))

    def branch(self, trial: str | int, config: Mapping[str, Any] | None = None) -> str:
        """Train one more trial, which begins with the newest checkpoint of another. Experimental.

        Its reports and epochs are counted on from the other's. Keys of ``config`` are changed as population-based
        training does: options of optimizers at once, and the model is built with them. No scheduler stops it.

        Args:
            trial: the other trial's id or number, or ``"best"``.
            config: what is to change, by dotted key or nested; nothing, for another course of the same training.
        """
        return self._send("branch", trial, config=to_plain_config(config or {}))

    def set(self, **settings: Any) -> str:
        """Change ``max_concurrent`` (None: as many as fit; running trials continue) or ``num_samples``."""
        if not settings:
            raise CommandError("Nothing to set. Give max_concurrent= or num_samples=.")
        return self._send("set", **settings)

    def _send(self, do: str, trial: str | int | None = None, **arguments: Any) -> str:
        known = None if trial is None else SweepResults.load(self.folder).trial(str(trial)).id
        return ask(RecordFollower(self.folder, brief=True), do, known, **arguments)


def attach(sweep: str | os.PathLike[str] = "last", storage: str | os.PathLike[str] = "tunelight_runs") -> AttachedSweep:
    """Return a sweep that runs, to stop or change it.

    Args:
        sweep: its folder, its name in ``storage``, or "last".
        storage: the folder of sweeps, or its URL.

    Raises: StorageError where there is no such sweep. Runs on: any process that reaches the folder.
    """
    return AttachedSweep(find_sweep(sweep, storage))
