"""The two packages of Lightning: each alone in its processes, and what happens where they meet."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests import flavours
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, plain
from tests.kit.waiting import PROGRAM_S
from tunelight.compat.lightning import FABRIC, VARIABLE, flavour
from tunelight.errors import TrainFunctionError

SPACE = {"lr": tl.uniform(0.01, 0.1)}


def test_a_worker_imports_the_package_of_its_sweep_and_not_the_other(ray4: Any, tmp_path: Path) -> None:
    def told(config: dict[str, Any]) -> None:
        plain(config)
        packages = {name.partition(".")[0] for name in sys.modules}
        found = sorted(packages & {"pytorch_lightning", "lightning_fabric", "lightning"})
        Path(tl.get_context().trial_dir, f"{tl.get_context().rank}.json").write_text(json.dumps(found))

    (trial,) = run(SPACE, told, tmp_path, 1).trials
    assert trial.error is None
    expected = {"pytorch_lightning": ["lightning_fabric", "pytorch_lightning"], "lightning.pytorch": ["lightning"]}
    for rank in (0, 1):
        assert json.loads(Path(trial.path, f"{rank}.json").read_text()) == expected[flavour()]


def meet(config: dict[str, Any]) -> None:
    """Be a library: give a callback to a Trainer that is of another package than the callback."""
    other = import_module(flavours.other())
    boring = import_module(f"{flavours.other()}.demos.boring_classes")
    trainer = other.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=[tl.TuneReportCallback()])
    trainer.fit(boring.BoringModel())


def test_a_callback_of_one_package_in_a_trainer_of_the_other_ends_the_trial(ray4: Any, tmp_path: Path) -> None:
    (trial,) = run(SPACE, meet, tmp_path, 1, workers=1).trials
    assert trial.error is not None
    assert f"This Trainer is {flavours.other()}.trainer.trainer.Trainer" in trial.error
    assert f"this TuneReportCallback was made for {flavour()}" in trial.error


def uses_both(config: dict[str, Any]) -> None:
    import lightning.pytorch
    import pytorch_lightning

    both = {"pytorch_lightning": pytorch_lightning, "lightning.pytorch": lightning.pytorch}
    made = both[flavour()].Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, strategy=tl.RayStrategy(),
        callbacks=[tl.TuneReportCallback({"loss": "val_loss"})],
    )  # fmt: skip
    made.fit(Line(config["lr"]), datamodule=LineData())


def test_a_train_function_that_uses_both_packages_trains_with_the_chosen_one(
    ray4: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, flavour())
    (trial,) = run(SPACE, uses_both, tmp_path, 1).trials
    assert trial.error is None
    assert len(trial.history) == 1
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(TrainFunctionError, match=r"uses lightning\.pytorch and .*uses pytorch_lightning"):
        run(SPACE, uses_both, tmp_path / "undecided", 1)
    assert not (tmp_path / "undecided").exists()


PROGRAM = """
import sys
import tunelight as tl
from tunelight.record import read_sweep_file

def train(config):
    import pytorch_lightning as pl
    from tunelight.extras.digits import DigitsClassifier, DigitsData
    report = tl.TuneReportCheckpointCallback({"val_loss": "val_loss"})
    trainer = pl.Trainer(max_epochs=2, strategy=tl.RayStrategy(), accelerator="cpu", logger=False, callbacks=[report])
    trainer.fit(DigitsClassifier(config["lr"], hidden=16), datamodule=DigitsData())

with tl.ready():  # workers are forked from a process that has imported the other package, if it is not this one
    results = tl.run({"lr": tl.loguniform(1e-3, 1e-1)}, train, metric="val_loss", num_samples=1, seed=5, workers=2,
                     scheduler="fifo", progress=False, storage=sys.argv[1], name="pytorch_lightning")
assert not results.errors, results.errors
assert read_sweep_file(results.folder)["lightning"] == "pytorch_lightning"
print([report["val_loss"] for report in results.best.history])
"""


@pytest.mark.apart
def test_code_alone_tells_the_package_and_both_have_the_same_losses_to_every_digit(tmp_path: Path) -> None:
    losses = []
    for package in FABRIC:
        script = tmp_path / f"{package}.py"
        script.write_text(PROGRAM.replace("pytorch_lightning", package))
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path)], cwd=tmp_path, env=flavours.as_a_user(),
            capture_output=True, text=True, timeout=PROGRAM_S / 2, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        losses.append(done.stdout.splitlines()[-1])
    assert losses[0] == losses[1]
    assert losses[0].count(",") == 1
