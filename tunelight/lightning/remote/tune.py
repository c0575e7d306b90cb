"""Reports of a gang that trains inside one of Ray Tune's function trainables, on to Tune."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ray import tune
from ray.tune import Checkpoint

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import in_function_trainable
from tunelight.messages import CheckpointInfo, Report


class TrialReporter:
    """Passes reports on to the Tune trial that this process is. Runs on: the trial's own process.

    Tune keeps a copy of each checkpoint that it is handed (as many as its ``num_to_keep`` says). Of the files that the
    gang wrote, the last two are left while it trains, for a start after a fault.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._left: list[CheckpointInfo] = []

    def __call__(self, report: Report) -> None:
        """Report to Tune; it may end the trial here, by SystemExit."""
        if report.checkpoint is None:
            tune.report(report.metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.copy_into(report.checkpoint, folder)
            tune.report(report.metrics, checkpoint=Checkpoint.from_directory(folder))
        self._left = checkpoints.keep_spares([*self._left, report.checkpoint])

    def close(self) -> None:
        """Delete what the gang has written, once it has come to its end: Tune has copies."""
        for info in self._left:
            checkpoints.discard(Path(info.path))
        self._left = []


def trial_reporter() -> TrialReporter | None:
    """Return the reporter of the trial that this process is, or None where it is none."""
    if not in_function_trainable():
        return None
    return TrialReporter(str(tune.get_context().get_trial_dir()))
