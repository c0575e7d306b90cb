"""The two packages of Lightning, and libraries that bring or copy one: each alone in its processes, or together."""

from __future__ import annotations

import copy
import pickle
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests import flavours
from tests.kit.programs import PROGRAM_S, python
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData, note, notes, plain, trainer
from tunelight.compat.lightning import FABRIC, VARIABLE, TorchCheckpointIO, flavour
from tunelight.errors import TrainFunctionError

SPACE = {"lr": tl.uniform(0.01, 0.1)}


def test_a_worker_imports_the_package_of_its_sweep_and_not_the_other(ray4: Any, tmp_path: Path) -> None:
    def told(config: dict[str, Any]) -> None:
        plain(config)
        packages = {name.partition(".")[0] for name in sys.modules}
        note("imported", found=sorted(packages & {"pytorch_lightning", "lightning_fabric", "lightning"}))

    (trial,) = run(SPACE, told, tmp_path, 1).trials
    assert trial.error is None
    expected = {"pytorch_lightning": ["lightning_fabric", "pytorch_lightning"], "lightning.pytorch": ["lightning"]}
    assert [rank[0]["found"] for rank in notes(trial, "imported")] == [expected[flavour()]] * 2


def others(**more: Any) -> tuple[Any, Any]:
    """Return a Trainer and a model of the other Lightning, as a library makes them."""
    boring = import_module(f"{flavours.other()}.demos.boring_classes")
    made = import_module(flavours.other()).Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **more,
    )  # fmt: skip
    return made, boring.BoringModel()


def library(config: dict[str, Any]) -> None:
    """Be a library that copies its arguments and makes a Trainer for each call, or brings the other Lightning."""
    if config["by"] != "copies":
        one, model = others(**({"callbacks": [tl.TuneReportCallback()]} if config["by"] == "callback" else {}))
        one.fit(model)
        tl.report({"loss": float(one.global_step)})
        return
    given: dict[str, Any] = {"strategy": tl.RayStrategy(), "plugins": [TorchCheckpointIO()]}
    ours, data = Line(config["lr"]), LineData()
    trainer(1, **given).fit(ours, datamodule=data)
    kept: dict[str, Any] = copy.deepcopy(given)
    trainer(1, **kept).fit(ours, datamodule=data)
    trainer(1, **kept).validate(ours, datamodule=data, verbose=False)
    for again in (copy.copy(given["strategy"]), pickle.loads(pickle.dumps(given["strategy"])), kept["strategy"]):
        assert again.world_size == 2
        assert again.num_cpus_per_worker == 1


def test_a_strategy_is_copied_and_the_other_lightning_ends_a_trial_on_all_ranks_with_what_to_do(ray4, tmp_path):
    """A Trainer of the other one trained each rank alone, and finished as if nothing were wrong."""
    configs = [{"lr": 0.01, "by": by} for by in ("copies", "itself", "callback")]
    results = run({**SPACE, "by": tl.choice(["copies", "itself", "callback"])}, library, tmp_path, configs)
    copied, itself, callback = results.trials
    assert (copied.state, copied.error) == ("FINISHED", None)
    log = Path(itself.path, "log.txt").read_text()
    for rank in (0, 1):
        assert f"[{rank}] tunelight.errors.StrategyError: This Trainer is of {flavours.other()}" in log
    assert f"Choose {flavours.other()} before the sweep" in str(itself.error)
    assert f"This Trainer is {flavours.other()}.trainer.trainer.Trainer" in str(callback.error)
    assert f"this TuneReportCallback was made for {flavour()}" in str(callback.error)


def uses_both(config: dict[str, Any]) -> None:
    import lightning.pytorch
    import pytorch_lightning

    both = {"pytorch_lightning": pytorch_lightning, "lightning.pytorch": lightning.pytorch}
    made = both[flavour()].Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, strategy=tl.RayStrategy(),
        callbacks=[tl.TuneReportCallback({"loss": "val_loss"})],
    )  # fmt: skip
    made.fit(Line(config["lr"]), datamodule=LineData())


def test_a_train_function_that_uses_both_packages_trains_with_the_chosen_one(ray4, tmp_path, monkeypatch):
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
        done = python(script, tmp_path, cwd=tmp_path, limit_s=PROGRAM_S / 2)
        losses.append(done.stdout.splitlines()[-1])
    assert losses[0] == losses[1]
    assert losses[0].count(",") == 1
