"""results: what is read back from a sweep's folder, and what is exported from it."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.recording import ERROR, Writer
from tunelight.errors import (
    CheckpointError,
    ImportPathError,
    NoResultError,
    StorageError,
    TrainFunctionError,
)
from tunelight.results import SweepResults, TrialResult


@pytest.fixture
def written(tmp_path):
    return Writer(tmp_path)


@pytest.fixture
def three(written):
    written.trial(0.9, 0.2, 0.6)
    written.trial(0.5, 0.4, state="STOPPED")
    written.trial(0.8, state="ERROR", error=ERROR)
    return written.load()


def test_best_is_by_the_best_report_not_the_last(three):
    assert three.best.id == "00000"
    assert three.best.value == 0.2
    assert three.best.metrics == {
        "loss": 0.2,
        "acc": 0.8,
        "epoch": 1,
        "training_iteration": 2,
        "timestamp": 2.0,
    }
    assert three.best_config == {"lr": 1.0}


def test_history_is_every_report_in_order(three):
    assert [report["loss"] for report in three.best.history] == [0.9, 0.2, 0.6]
    assert [report["training_iteration"] for report in three.best.history] == [1, 2, 3]


def test_results_are_the_trials_in_order_of_creation(three):
    assert len(three) == 3
    assert [trial.index for trial in three] == [0, 1, 2]
    assert [trial.seed for trial in three.trials] == [0, 1, 2]
    assert three.trials[1].path == three.folder / "trial_00001"


def test_counts_are_by_how_trials_ended(written):
    for state in ("FINISHED", "STOPPED", "STOPPED", "ERROR", "INTERRUPTED"):
        written.trial(0.5, state=state, error=ERROR if state == "ERROR" else None)
    found = written.load()
    assert (found.num_finished, found.num_stopped, found.num_errors, found.num_interrupted) == (1, 2, 1, 1)


def test_errors_are_the_trials_that_failed_with_rank_and_traceback(three):
    (failed,) = three.errors
    assert failed.error == "rank 1 on a: ValueError: no such lr\n\nTraceback"
    assert three.trials[0].error is None


def test_nan_is_never_best_and_of_equals_the_first_trial_is(written):
    written.trial(math.nan)
    written.trial(0.5)
    written.trial(0.5)
    found = written.load()
    assert found.best.id == "00001"
    assert found.trials[0].metrics == {}
    assert found.trials[0].value is None


def test_mode_max_takes_the_largest(tmp_path):
    written = Writer(tmp_path, metric="acc", mode="max")
    written.trial(0.9, 0.3)
    written.trial(0.6)
    assert written.load().best.value == 0.7


def test_nothing_reported_is_an_error_that_shows_the_first_failure(written):
    written.trial(state="ERROR", error=ERROR)
    found = written.load()
    with pytest.raises(NoResultError, match=r"'loss': 1 trial \(1 error\).*rank 1 on a: ValueError"):
        _ = found.best
    assert "No comparable result" in found.summary()
    assert "nothing reported" in repr(found)


def test_a_running_sweep_can_be_read(written):
    written.trial(0.5, state="RUNNING")
    found = written.load()
    assert found.trials[0].state == "RUNNING"
    assert found.trials[0].seconds == 1  # from its start to the last line
    assert found.best.value == 0.5


def test_a_folder_that_is_no_sweep_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="holds no sweep"):
        SweepResults.load(tmp_path)


def test_a_sweep_without_its_yaml_is_read_from_the_record(written):
    written.trial(0.5)
    (written.folder / "sweep.yaml").unlink()
    found = written.load()
    assert (found.metric, found.mode, found.name) == ("loss", "min", "digits")


# The table


def test_dataframe_has_one_row_a_trial(three):
    table = three.dataframe()
    assert list(table.columns) == [
        "trial_id",
        "state",
        "best_loss",
        "last_loss",
        "epochs",
        "reports",
        "seconds",
        "config.lr",
    ]
    assert list(table["best_loss"]) == [0.2, 0.4, 0.8]
    assert list(table["last_loss"]) == [0.6, 0.4, 0.8]
    assert list(table["epochs"]) == [3, 2, 1]


def test_dataframe_flattens_nested_configurations_and_takes_trials_without_reports(written):
    written.trial(config={"model": {"lr": 0.1}, "data.batch": 8, "extra": {}})
    table = written.load().dataframe()
    assert "config.extra" not in table  # a column of mappings could not be grouped by
    assert table["config.model.lr"][0] == 0.1
    assert table["config.data.batch"][0] == 8
    assert table["reports"][0] == 0


# Exports


def test_export_holds_the_configuration_and_where_it_came_from(three, tmp_path):
    path = three.export_best(tmp_path / "new" / "best.yaml")
    data = yaml.safe_load(path.read_text())
    assert data.pop("versions")["python"]
    assert data == {
        "config": {"lr": 1.0},
        "metric": "loss",
        "mode": "min",
        "value": 0.2,
        "metrics": {"loss": 0.2, "acc": 0.8},
        "trial": "00000",
        "seed": 0,
        "training_iteration": 2,
        "epoch": 1,
        "sweep": {"name": "digits", "folder": str(three.folder)},
        "checkpoint": None,
    }


def test_exported_small_numbers_read_back_as_numbers(written, tmp_path):
    written.trial(1e-5, config={"lr": 1e-05, "wd": 3e-30})
    found = written.load()
    for name in ("best.yaml", "best.yml"):
        data = yaml.safe_load(found.export_best(tmp_path / name).read_text())
        assert data["config"] == {"lr": 1e-05, "wd": 3e-30}
        assert data["value"] == 1e-05


def test_export_is_json_by_suffix(three, tmp_path):
    assert json.loads(three.export_best(tmp_path / "best.json").read_text())["config"] == {"lr": 1.0}


def test_export_prefers_the_versions_that_the_sweep_ran_on(tmp_path):
    written = Writer(tmp_path, versions={"python": "3.11.0", "torch": "2.6"})
    written.trial(0.5)
    data = yaml.safe_load(written.load().export_best(tmp_path / "b.yaml").read_text())
    assert data["versions"] == {"python": "3.11.0", "torch": "2.6"}


@pytest.mark.parametrize("name", ["best.txt", "best"])
def test_export_to_another_suffix_is_an_error_that_lists_them(three, tmp_path, name):
    with pytest.raises(StorageError, match=r"\.yaml, \.yml, \.json"):
        three.export_best(tmp_path / name)


# Checkpoints and models


def test_checkpoint_is_the_best_that_is_kept(written):
    trial = written.trial(0.5, 0.2, 0.4)
    written.checkpoint(trial, 1, 0.5)
    best = written.checkpoint(trial, 2, 0.2)
    written.checkpoint(trial, 3, 0.4)
    assert written.load().best.checkpoint == best


def test_checkpoint_that_was_pruned_gives_way_to_the_next_best(written):
    trial = written.trial(0.2, 0.4, 0.3)
    written.checkpoint(trial, 1, 0.2, there=False)
    written.checkpoint(trial, 2, 0.4)
    last = written.checkpoint(trial, 3, 0.3)
    assert written.load().best.checkpoint == last


def test_where_the_best_report_has_no_checkpoint_model_and_export_say_which_they_give(written, tmp_path):
    trial = written.trial(0.9, 0.2, 0.6)
    import torch

    torch.save({"state_dict": {}}, written.checkpoint(trial, 3, 0.6))
    best = written.load().best
    said = re.escape("number 2 (loss=0.2), has no checkpoint. report-000003.ckpt is that of report 3 (loss=0.6).")
    with pytest.warns(UserWarning, match=said):
        best.load_model(Fake)
    with pytest.warns(UserWarning, match=said):
        exported = json.loads(best.export(tmp_path / "best.json", checkpoint=True).read_text())
    assert exported["checkpoint_of_report"] == 3


@pytest.mark.parametrize("value", [None, math.nan])
def test_checkpoint_is_the_last_where_none_was_judged(written, value):
    trial = written.trial(0.5, 0.4)
    written.checkpoint(trial, 1, value)
    last = written.checkpoint(trial, 2, value)
    assert written.load().best.checkpoint == last


def test_checkpoints_are_found_after_the_sweep_was_moved(written, tmp_path):
    written.checkpoint(written.trial(0.5), 1, 0.5)
    written.record.close()
    moved = written.folder.rename(tmp_path / "moved")
    assert (SweepResults.load(moved).best.checkpoint or Path()).is_relative_to(moved)


class Fake:
    """Stands in for a LightningModule class."""

    def __init__(self, lr=0.0, hidden=0):
        self.arguments = {"lr": lr, "hidden": hidden}

    def eval(self):
        return self

    @classmethod
    def load_from_checkpoint(cls, path, map_location, weights_only, **kwargs):
        assert map_location == "cpu"
        return cls(**kwargs) if kwargs else cls(lr="the checkpoint's")


def saved(written: Writer, data: Any, **config: Any) -> TrialResult:
    """Write a trial whose checkpoint holds ``data``; return the trial's result."""
    torch = pytest.importorskip("torch")
    trial = written.trial(0.5, config=config)
    torch.save(data, written.checkpoint(trial, 1, 0.5))
    return written.load().best


def test_model_is_the_recorded_one_and_gets_the_trials_arguments(tmp_path):
    written = Writer(tmp_path, model=f"{__name__}:Fake")
    trial = saved(written, {"state_dict": {}}, **{"model.lr": 0.1, "model.hidden": 3, "data.batch": 8})
    assert trial.load_model().arguments == {"lr": 0.1, "hidden": 3}


def test_model_of_a_train_function_gets_what_its_constructor_takes(written):
    trial = saved(written, {"state_dict": {}}, lr=0.1, batch=8)
    assert trial.load_model(Fake, hidden=5).arguments == {"lr": 0.1, "hidden": 5}


def test_saved_hyperparameters_are_left_to_lightning(written):
    trial = saved(written, {"state_dict": {}, "hyper_parameters": {"lr": 0.2}}, lr=0.1)
    assert trial.load_model(Fake).arguments["lr"] == "the checkpoint's"


def test_model_that_is_not_known_must_be_given(written):
    trial = saved(written, {"state_dict": {}})
    with pytest.raises(TrainFunctionError, match=r"load_model\(YourLightningModule\)"):
        trial.load_model()


@pytest.mark.parametrize("path", ["no_such_module:Model", f"{__name__}:Missing"])
def test_model_that_does_not_import_is_an_error(tmp_path, path):
    written = Writer(tmp_path, model=path)
    written.trial(0.5)
    with pytest.raises(ImportPathError, match=path):
        written.load().best.load_model()


def test_model_factory_is_no_class_to_load(tmp_path):
    written = Writer(tmp_path, model=f"{__name__}:saved")
    written.trial(0.5)
    with pytest.raises(TrainFunctionError, match="no LightningModule class but a function"):
        written.load().best.load_model()
    with pytest.raises(TrainFunctionError, match="int is no LightningModule class"):
        written.load().best.load_model(int)


def test_model_without_checkpoint_is_an_error_that_says_how_to_get_one(written):
    written.trial(0.5)
    with pytest.raises(CheckpointError, match="TuneReportCheckpointCallback"):
        written.load().best.load_model(Fake)


def test_checkpoint_that_would_run_code_is_refused(written):
    trial = saved(written, {"state_dict": {}, "object": Writer})
    with pytest.raises(CheckpointError, match=r"it holds \S+\.Writer\. .* load_model\(weights_only=False\)"):
        trial.load_model(Fake)
    assert trial.load_model(Fake, weights_only=False)


class LoadsByItself(Fake):
    """Stands in for a model of chemprop's, whose method hands weights_only=False on by itself."""

    @classmethod
    def load_from_checkpoint(cls, path, map_location=None, **kwargs):  # type: ignore[override]
        return super().load_from_checkpoint(path, map_location, weights_only=False, **kwargs)  # type: ignore[no-untyped-call]


def test_a_class_that_decides_by_itself_what_a_checkpoint_may_hold_is_not_told(written):
    trial = saved(written, {"state_dict": {}, "object": Writer}, lr=0.1)
    with pytest.raises(CheckpointError, match="would run code"):
        trial.load_model(LoadsByItself)
    assert trial.load_model(LoadsByItself, weights_only=False).arguments == {"lr": 0.1, "hidden": 0}


def test_checkpoint_that_is_broken_is_an_error(written):
    pytest.importorskip("torch")
    trial = written.trial(0.5)
    written.checkpoint(trial, 1, 0.5).write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="cannot be loaded into Fake"):
        written.load().best.load_model(Fake)


# In words


def test_summary_says_what_a_person_wants_to_know(three):
    assert three.summary().splitlines() == [
        "Sweep digits: 3 trials (1 finished, 1 stopped, 1 error)",
        "Best loss: 0.2 (trial 00000 at epoch 2)",
        "  lr=1",
        "Trial 00002 failed: rank 1 on a: ValueError: no such lr",
    ]
    assert "3 trials" in repr(three)
    assert repr(three.best) == "TrialResult(00000, FINISHED, value=0.2, reports=3)"


def test_results_can_be_pickled(three):
    assert pickle.loads(pickle.dumps(three)).best_config == three.best_config


def test_reading_results_imports_neither_torch_nor_lightning_and_works_without_ray(three):
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from tunelight.results import SweepResults, TrialResult\n"
        "print(SweepResults.load(sys.argv[1]).best.value)\n"
        "assert not {'torch', 'pytorch_lightning', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(three.folder)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0.2\n", "")
