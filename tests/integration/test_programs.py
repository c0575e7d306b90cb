"""Programs that have started Ray themselves: what a sweep shows on their terminal, and what it does without."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests import flavours
from tests.doors import PACKAGE
from tests.kit.programs import python

SCRIPT = """
import os, signal, sys
from pathlib import Path

import ray

import tunelight as tl
from tunelight.extras.digits import DigitsClassifier, DigitsData

def train(config):
    for number in range(tl.get_context().number, 3):
        if number == 1 and tl.get_context().rank == 1 and not (flag := Path(config["folder"], "killed")).exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        tl.report({"loss": 1.0})

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    tl.run(
        {"model.lr": tl.loguniform(1e-3, 1e-1)}, model=DigitsClassifier, data=DigitsData, max_epochs=1,
        metric="val_loss", num_samples=2, workers=2, storage=sys.argv[1], name="s",
    )
    for stream in (sys.stdout, sys.stderr):
        print("the next sweep", file=stream, flush=True)
    tl.run({"folder": sys.argv[1]}, train, metric="loss", num_samples=1, workers=2, storage=sys.argv[1], name="t")
    ray.shutdown()
"""


@pytest.mark.apart
def test_a_sweep_shows_its_own_lines_and_none_of_ray_s_or_lightning_s_also_of_a_fault_that_was_survived(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", tmp_path, cwd=tmp_path, **os.environ)
    (out, after), (errors, later) = (text.split("the next sweep\n") for text in (done.stdout, done.stderr))
    # Not counted: a step that takes its time, and the line of each minute, as `s  0/2 done  1m 00s`.
    own = [line for line in out.splitlines() if line and not line.endswith(" ...") and not line.startswith("s  ")]
    assert len(own) == 3, out
    assert own[-1].startswith("Sweep s ended after")
    # Ray's own start, which the program asked for: how it authenticates, and that it is up.
    rays_start = ("authentication_token_setup.py", "worker.py")
    others = [line for line in errors.splitlines() if line and not any(name in line for name in rays_start)]
    assert not others, errors
    log = (tmp_path / "s" / "trial_00000" / "log.txt").read_text()
    assert "[0] `Trainer.fit` stopped: `max_epochs=1` reached." in log
    assert "litlogger" not in log
    assert "entry point" not in log
    assert (tmp_path / "killed").exists()
    assert "trial 00000 finished" in after
    assert "worker died" not in after + later


LEAN = """
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
    script.write_text(flavours.written(LEAN))
    nodes = os.pathsep.join([str(hidden), str(tmp_path)])
    done = python(script, nodes, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert f"{tmp_path}/tunelight/__init__.py 3" in done.stdout
