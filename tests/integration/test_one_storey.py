"""A sweep in a copy of the package without its second storey, `tunelight/extras`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import flavours
from tests.doors import PACKAGE
from tests.kit.waiting import PROGRAM_S

SWEEP = """
import sys
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel
import tunelight as tl

class Model(BoringModel):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss["loss"], on_epoch=True)
        return loss

def train(config):
    callbacks = [tl.TuneReportCheckpointCallback("loss", on="train_epoch_end")]
    pl.Trainer(strategy=tl.RayStrategy(), max_epochs=2, limit_train_batches=2, limit_val_batches=0,
               callbacks=callbacks, logger=False, enable_checkpointing=False).fit(Model())

if __name__ == "__main__":
    results = tl.run({"lr": tl.uniform(0.01, 0.1)}, train, metric="loss", workers=2, num_samples=2, max_epochs=2,
                     searcher="random", scheduler="fifo", storage="runs", progress=False, seed=1)
    assert not results.errors, results.errors
    print(tl.__file__, [len(trial.history) for trial in results.trials])
"""


@pytest.mark.apart
def test_a_sweep_runs_without_the_extras(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("extras"))
    script = tmp_path / "sweep.py"
    script.write_text(flavours.written(SWEEP))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
        env=flavours.as_a_user() | {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path}/tunelight/__init__.py [2, 2]" in done.stdout
