"""A sweep on a node without what only drivers use: plotly, TensorBoard, Optuna, rich, typer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import flavours

ROOT = Path(__file__).parents[2]

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
    callbacks = [tl.TuneReportCheckpointCallback()]
    pl.Trainer(strategy=tl.RayStrategy(), max_epochs=3, callbacks=callbacks, default_root_dir=config["at"]).fit(
        Line(lr=config["lr"]), datamodule=LineData()
    )

if __name__ == "__main__":
    import optuna, plotly, rich
    storage, hidden = sys.argv[1:]
    os.environ["PYTHONPATH"] = os.pathsep.join([hidden, os.getcwd()])  # of all that Ray starts, and not of this driver
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    results = tl.run(
        {"lr": tl.loguniform(0.001, 0.1), "at": storage}, train=train, metric="val_loss", workers=2, num_samples=3,
        max_epochs=3, scheduler="asha", searcher="tpe", storage=storage, progress=False, seed=1,
    )
    assert not results.errors, results.errors
    print(f"best {results.best.config['lr']:.4f} of {len(results)}")
"""


@pytest.mark.slow
def test_a_sweep_trains_on_nodes_without_what_only_drivers_use(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("from tests.lean import hide\n\nhide()\n")
    script = tmp_path / "lean_sweep.py"
    script.write_text(flavours.written(SWEEP))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs"), str(hidden)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 3" in done.stdout
