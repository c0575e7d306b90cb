"""A sweep's winner, run again bit by bit and from exported files; sweeps that go on, of a script's objects and old."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tunelight as tl
from tests import flavours
from tests.formats import FORMATS, unpacked
from tests.kit.sweeps import run
from tests.kit.training import Line, LineData
from tunelight.extras.digits import DigitsClassifier, DigitsData

QUIET = {"accelerator": "cpu", "enable_progress_bar": False}


@pytest.fixture(scope="module")
def results(ray4: Any, tmp_path_factory: pytest.TempPathFactory) -> tl.SweepResults:
    """Search a net with dropout: every random number counts."""
    space = {"model.lr": tl.loguniform(1e-4, 0.1), "data.batch_size": tl.choice([8, 16])}
    return run(
        space, None, tmp_path_factory.mktemp("sweep"), [{"model.lr": 0.1, "data.batch_size": 8}], num_samples=6,
        model=Line, data=LineData, metric="val_loss", seed=1, max_concurrent=1, max_epochs=3, trainer_args=QUIET,
        scheduler={"name": "asha", "grace_period": 1, "reduction_factor": 2},
        searcher={"name": "tpe", "n_startup_trials": 3},
    )  # fmt: skip


def test_trials_that_ran_on_a_used_gang_and_were_stopped_are_reproduced(results: tl.SweepResults) -> None:
    stopped = next(trial for trial in results.trials[1:] if trial.state == "STOPPED")
    finished = next(trial for trial in results.trials if trial.state == "FINISHED")
    for trial in (stopped, finished):
        found = tl.reproduce(results, trial.id, progress=False)
        assert found.same, str(found)
        assert found.reports == len(trial.history)
        again = tl.SweepResults.load(found.folder)
        assert [one.id for one in again.trials] == [trial.id]
        assert again.trials[0].seed == trial.seed
        assert again.trials[0].config == trial.config


def test_weights_of_the_winner_are_copied_and_loaded(results: tl.SweepResults, tmp_path: Path) -> None:
    results.export_best(tmp_path / "best.yaml", "lightning-cli", checkpoint=True)
    model = results.best.load_model()
    assert not any(module.training for module in model.modules())
    weights = load_file(tmp_path / "best.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.usefixtures("warm_gangs")
def test_an_exported_file_trains_the_winner_as_its_trial_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"model.lr": tl.choice([0.02]), "model.hidden": tl.choice([32]), "data.batch_size": tl.choice([32])}
    results = run(
        space, None, tmp_path, 1, model=DigitsClassifier, data=DigitsData, max_epochs=2, metric="val_loss",
        trainer_args=QUIET,
    )  # fmt: skip
    exported = results.export_best(tmp_path / "best.yaml", "lightning-cli")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    done = flavours.module("cli").LightningCLI(
        DigitsClassifier, DigitsData, args=["fit", f"--config={exported}", f"--trainer.default_root_dir={tmp_path}"]
    )
    for seeded in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # by seed_everything in the file
        os.environ.pop(seeded, None)
    assert done.trainer.world_size == 2
    assert done.model.hparams["hidden"] == 32
    assert float(done.trainer.callback_metrics["val_loss"]) == results.best.history[-1]["val_loss"]


def test_a_sweep_that_the_last_version_recorded_goes_on_the_cut_off_trial_from_its_checkpoint(
    ray4: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FORMATS))
    folder = unpacked(tmp_path)
    before = tl.SweepResults.load(folder).trials
    try:
        results = tl.resume(folder, progress=False)
    finally:
        sys.modules.pop("recorded_model", None)
    assert len(results) == 5
    assert {trial.state for trial in results.trials if trial.id != "00001"} <= {"FINISHED", "STOPPED"}
    assert [trial.config for trial in results.trials[:4]] == [trial.config for trial in before]
    cut_off = results.trials[3]
    assert cut_off.history[:1] == before[3].history
    assert len(cut_off.history) > 1
    assert "report-000001.ckpt" in (cut_off.path / "log.txt").read_text()  # which Lightning has restored


SCRIPT = """
import dataclasses, enum
import tunelight as tl

class Opt(enum.Enum):
    SGD = 1
    ADAM = 2

@dataclasses.dataclass(frozen=True)
class Aug:
    p: float

def relu(x):
    return max(x, 0)

def facts(config):
    known = {"opt": config["opt"] in (Opt.SGD, Opt.ADAM), "aug": config["aug"] in (Aug(0.1), Aug(0.5))}
    return {**known, "act": config["act"] is relu, "context": tl.get_context().config["opt"] is config["opt"]}

def train(config):
    for number in range(1, 4):
        loss = config["aug"].p / number + (config["opt"] is Opt.SGD)
        tl.report({"loss": loss, **{name: int(true) for name, true in facts(config).items()}})
"""


def test_a_train_function_and_the_best_configuration_have_the_objects_of_the_script(ray4: Any, tmp_path: Path) -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, script)  # classes that workers cannot import
    opt, aug = script["Opt"], script["Aug"]
    space = {
        "opt": tl.choice([opt.SGD, opt.ADAM]),
        "aug": tl.choice([aug(0.1), aug(0.5)]),
        "act": tl.choice([script["relu"]]),
    }
    told: dict[str, Any] = {"metric": "loss", "storage": tmp_path, "name": "s", "progress": False, "seed": 1}
    told |= {"searcher": "tpe", "cpus_per_worker": 0.5}
    told["baselines"] = [{"opt": opt.ADAM, "aug": aug(0.5), "act": script["relu"]}]
    results = tl.run(space, script["train"], num_samples=2, repeats={"top": 1, "repeats": 2}, **told)
    results = tl.run(space, script["train"], num_samples=3, resume=True, repeats={"top": 1, "repeats": 2}, **told)
    for trial in results:
        assert [trial.metrics[name] for name in ("opt", "aug", "act", "context")] == [1, 1, 1, 1]
        assert trial.config["opt"] in opt
        assert trial.config["act"] is script["relu"]
    assert (len(results), len(results.repetitions)) == (3, 1)
    assert results.repetitions[0].metrics["opt"] == 1
    assert results.best_config["opt"] is opt.ADAM
    assert results.trial(0).plain_config == {"opt": "Opt.ADAM", "aug": "Aug(p=0.5)", "act": "__main__:relu"}
