"""Passes reports on to Tune, for a gang that trains inside one of Ray Tune's function trainables."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ray import tune
from ray.tune import Checkpoint

from tunelight.checkpoints import files as checkpoints
from tunelight.compat.ray import in_function_trainable, session_folder
from tunelight.messages import Report


class TrialReporter:
    """Passes reports on to the Tune trial of this process. Runs on: the trial's own process.

    Tune keeps copies of checkpoints (``num_to_keep`` of them).
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, report: Report) -> None:
        """Report to Tune, which may end the trial here by SystemExit."""
        if report.checkpoint is None:
            tune.report(report.metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.copy_into(report.checkpoint, folder)
            tune.report(report.metrics, checkpoint=Checkpoint.from_directory(folder))

    def close(self) -> None:
        """Delete the gang's files at its end: Tune has copies of the checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)


def trial_reporter() -> TrialReporter | None:
    """Return the reporter to the Tune trial of this process; None outside of one.

    Its folder is not the trial's: when Tune saves the sweep, it copies that to the storage, and deletes nothing there.
    """
    if not in_function_trainable():
        return None
    return TrialReporter(str(Path(session_folder(), "tunelight", str(tune.get_context().get_trial_id()))))
