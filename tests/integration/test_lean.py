"""A sweep in a copy of the package without `tunelight/extras`, on a node without what only drivers use."""

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
import os, sys
import ray
import tunelight as tl

def train(config):
    import importlib.util
    import pytorch_lightning as pl
    from tests.lean import DRIVER_ONLY
    from tests.kit.training import Line, LineData
    there = [name for name in DRIVER_ONLY if importlib.util.find_spec(name)]
    assert not there, there
    trainer = pl.Trainer(strategy=tl.RayStrategy(), max_epochs=3, callbacks=[tl.TuneReportCheckpointCallback()],
                         logger=False, enable_checkpointing=False)
    trainer.fit(Line(lr=config["lr"]), datamodule=LineData())

if __name__ == "__main__":
    import optuna, plotly, rich
    os.environ["PYTHONPATH"] = sys.argv[1]  # of all that Ray starts, and not of this driver
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    results = tl.run(
        {"lr": tl.loguniform(0.001, 0.1)}, train=train, metric="val_loss", workers=2, num_samples=3, max_epochs=3,
        scheduler="asha", storage="runs", progress=False, seed=1,
    )
    assert not results.errors, results.errors
    print(tl.__file__, len(results))
"""


@pytest.mark.apart
def test_a_sweep_runs_without_the_extras_on_nodes_without_what_only_drivers_use(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("extras"))
    shutil.copytree(PACKAGE.parent / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("integration", "unit"))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("from tests.lean import hide\n\nhide()\n")
    script = tmp_path / "sweep.py"
    script.write_text(flavours.written(SWEEP))
    done = subprocess.run(
        [sys.executable, str(script), os.pathsep.join([str(hidden), str(tmp_path)])],
        cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
        env=flavours.as_a_user() | {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path}/tunelight/__init__.py 3" in done.stdout
