"""Reports of a gang that trains inside one of Ray Tune's function trainables, on to Tune."""

from __future__ import annotations

import tempfile

from ray import tune
from ray.tune import Checkpoint
from ray.tune.trainable.trainable_fn_utils import _in_tune_session

from tunelight import checkpoints
from tunelight.messages import Report


class TrialReporter:
    """Passes reports on to the Tune trial that this process is. Runs on: the trial's own process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, report: Report) -> None:
        """Report to Tune; it may end the trial here, by SystemExit."""
        if report.checkpoint is None:
            tune.report(report.metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.copy_into(report.checkpoint, folder)
            tune.report(report.metrics, checkpoint=Checkpoint.from_directory(folder))


def trial_reporter() -> TrialReporter | None:
    """Return the reporter of the trial that this process is, or None where it is none."""
    if not _in_tune_session():
        return None
    return TrialReporter(str(tune.get_context().get_trial_dir()))
