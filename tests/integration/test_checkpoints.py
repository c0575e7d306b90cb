"""Checkpoints of real gangs: in the background, gone back to, and without a storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tunelight as tl
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, trainer
from tunelight.session.session import get_session


def test_a_full_disk_does_not_end_training_and_checkpoints_come_back(ray4: Any, tmp_path: Path) -> None:
    def full(config: dict[str, Any]) -> None:
        import resource

        class Full(tl.TuneReportCheckpointCallback):
            def _handle(self, trainer: Any, epoch: int) -> None:
                get_session().writing.settle()
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                limit = 1024 if epoch in (1, 2) else hard  # a file that grows beyond it fails, as on a full disk
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                super()._handle(trainer, epoch)
                get_session().writing.settle()
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

        trainer(5, Full({"loss": "val_loss"})).fit(Line(), datamodule=LineData())

    results = run({"lr": tl.loguniform(1e-3, 1e-1)}, full, tmp_path, 1, checkpoints=tl.Checkpoints(keep=5))
    (trial,) = results.trials
    assert trial.state == "FINISHED", trial.error
    assert len(trial.history) == 5
    assert sorted(path.name for path in trial.path.glob("checkpoints/*.ckpt")) == [
        "report-000001.ckpt", "report-000004.ckpt", "report-000005.ckpt",
    ]  # fmt: skip
    notes = [text for _, text in results._state.notes]
    assert [text for text in notes if "could not be written (the storage did not take it)" in text] != []
    assert notes.count("Checkpoints are written again.") == 1
