"""results: what is read back from a sweep's folder, exported from it, and written as an Optuna study."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.trial import TrialState

import tunelight as tl
from tests.kit.programs import printed_by
from tests.kit.recording import ERROR, Sweep, Writer, written_checkpoint
from tunelight.errors import (
    CheckpointError,
    ImportPathError,
    NoResultError,
    SettingsError,
    StorageError,
    TrainFunctionError,
)
from tunelight.extras.optuna_versions import constraints_of
from tunelight.extras.report.page import log_end
from tunelight.results import SweepResults


@pytest.fixture
def written(tmp_path):
    return Writer(tmp_path)


@pytest.fixture
def three(written):
    written.trial(0.9, 0.2, 0.6)
    written.trial(0.5, 0.4, state="STOPPED")
    written.trial(0.8, state="ERROR", error=ERROR)
    return written.load()


def test_results_are_the_trials_in_order_of_creation_with_every_report(three):
    assert len(three) == 3
    assert [trial.index for trial in three] == [0, 1, 2]
    assert [trial.seed for trial in three.trials] == [0, 1, 2]
    assert three.trials[1].path == three.folder / "trial_00001"
    assert [trial.error for trial in three] == [None, None, "rank 1 on a: ValueError: no such lr\n\nTraceback"]
    assert three.errors == [three.trials[2]]
    table = three.dataframe()
    assert [list(table[f"{which}_loss"]) for which in ("best", "last")] == [[0.2, 0.4, 0.8], [0.6, 0.4, 0.8]]
    assert list(table["epochs"]) == [3, 2, 1]
    assert [(report["training_iteration"], report["loss"]) for report in three.best.history] == [
        *((1, 0.9), (2, 0.2), (3, 0.6))
    ]


def test_nothing_reported_is_an_error_that_shows_the_first_failures(written):
    for _ in range(12):
        written.trial(state="ERROR", error=ERROR)
    found = written.load()
    assert found.summary().endswith("\nTrial 00009 failed: rank 1 on a: ValueError: no such lr\nand 2 more.")
    with pytest.raises(NoResultError, match=r"'loss': 12 trials \(12 error\).*rank 1 on a: ValueError"):
        _ = found.best
    assert "No comparable result" in found.summary()
    assert "nothing reported" in repr(found)


def test_an_export_has_the_versions_of_the_sweep_and_one_without_its_yaml_is_read_from_the_record(tmp_path):
    versions = {"python": "3.11.0", "torch": "2.6"}
    written = Writer(tmp_path, versions=versions)
    written.trial(0.5)
    exported = written.load().export_best(tmp_path / "b.yaml").read_text()
    assert yaml.safe_load(exported)["versions"] == versions  # not those of this process
    (written.folder / "sweep.yaml").unlink()
    found = written.load()
    assert (found.metric, found.mode, found.name) == ("loss", "min", "digits")


def test_dataframe_flattens_nested_configurations_and_takes_trials_without_reports(written):
    written.trial(config={"model": {"lr": 0.1}, "data.batch": 8, "extra": {}})
    table = written.load().dataframe()
    assert "config.extra" not in table  # a column of mappings could not be grouped by
    assert table["config.model.lr"][0] == 0.1
    assert table["config.data.batch"][0] == 8
    assert table["reports"][0] == 0


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


@pytest.mark.parametrize(
    ("values", "there", "found"),
    [
        ((0.2, 0.4, 0.3), True, 0),
        ((0.2, 0.4, 0.3), False, 2),
        ((None, None, None), True, 2),
        ((math.nan,) * 3, True, 2),
    ],
)
def test_checkpoint_is_the_best_that_is_kept_or_the_last_where_none_was_judged(written, values, there, found):
    trial = written.trial(0.2, 0.4, 0.3)
    paths = [written.checkpoint(trial, number, value, there or number > 1) for number, value in enumerate(values, 1)]
    assert written.load().best.checkpoint == paths[found]


@pytest.mark.parametrize(("number", "value"), [(3, 0.6), (2, 0.4)], ids=["a later one", "it was trained again"])
def test_where_the_best_report_has_no_checkpoint_model_and_export_say_which_they_give(written, tmp_path, number, value):
    trial = written.trial(0.9, 0.2, 0.6)
    import torch

    torch.save({"state_dict": {}}, written.checkpoint(trial, number, value))
    best = written.load().best
    kept = f"report-{number:06}.ckpt is that of report {number} (loss={value})."
    said = re.escape(f"number 2 (loss=0.2), has no checkpoint. {kept}")
    with pytest.warns(UserWarning, match=said):
        best.load_model(Fake)
    with pytest.warns(UserWarning, match=said):
        exported = json.loads(best.export(tmp_path / "best.json", checkpoint=True).read_text())
    assert exported["checkpoint_of_report"] == number


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


def saved(written: Writer, data: Any, **config: Any) -> SweepResults:
    """Write a trial whose checkpoint holds ``data``; return the results of its sweep."""
    torch = pytest.importorskip("torch")
    trial = written.trial(0.5, config=config)
    torch.save(data, written.checkpoint(trial, 1, 0.5))
    return written.load()


def test_a_model_gets_the_trial_s_arguments_as_far_as_its_constructor_takes_them(tmp_path):
    config = {"model.lr": 0.1, "model.hidden": 3, "data.batch": 8}
    recorded = saved(Writer(tmp_path / "a", model=f"{__name__}:Fake"), {"state_dict": {}}, **config)
    assert recorded.best.load_model().arguments == {"lr": 0.1, "hidden": 3}
    of_a_function = saved(Writer(tmp_path / "b"), {"state_dict": {}}, lr=0.1, batch=8)
    assert of_a_function.best.load_model(Fake, hidden=5).arguments == {"lr": 0.1, "hidden": 5}
    by_lightning = saved(Writer(tmp_path / "c"), {"state_dict": {}, "hyper_parameters": {"lr": 0.2}}, lr=0.1)
    assert by_lightning.best.load_model(Fake).arguments["lr"] == "the checkpoint's"


@pytest.mark.parametrize(
    ("recorded", "given", "error", "says"),
    [
        (None, (), TrainFunctionError, r"load_model\(YourLightningModule\)"),
        ("no_such_module:Model", (), ImportPathError, "no_such_module:Model"),
        (f"{__name__}:Missing", (), ImportPathError, f"{__name__}:Missing"),
        (f"{__name__}:saved", (), TrainFunctionError, "no LightningModule class but a function"),
        (None, (int,), TrainFunctionError, "int is no LightningModule class"),
        (None, (Fake,), CheckpointError, "TuneReportCheckpointCallback"),
    ],
)
def test_what_is_no_model_or_has_no_checkpoint_is_an_error(tmp_path, recorded, given, error, says):
    written = Writer(tmp_path, model=recorded)
    written.trial(0.5)
    with pytest.raises(error, match=says):
        written.load().best.load_model(*given)


class LoadsByItself(Fake):
    """Stands in for a model of chemprop's, whose method hands weights_only=False on by itself."""

    @classmethod
    def load_from_checkpoint(cls, path, map_location=None, **kwargs):  # type: ignore[override]
        return super().load_from_checkpoint(path, map_location, weights_only=False, **kwargs)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", [Fake, LoadsByItself])
def test_a_checkpoint_that_would_run_code_is_refused_unless_asked_for(written, kind):
    trial = saved(written, {"state_dict": {}, "object": Writer}, lr=0.1).best
    says = r"would run code[\s\S]*it holds \S+\.Writer\. .* load_model\(weights_only=False\)"
    with pytest.raises(CheckpointError, match=says):
        trial.load_model(kind)
    assert trial.load_model(kind, weights_only=False).arguments == {"lr": 0.1, "hidden": 0}


def test_summary_says_what_a_person_wants_to_know(three):
    assert three.summary().splitlines() == [
        "Sweep digits: 3 trials (1 finished, 1 stopped, 1 error)",
        "Best loss: 0.2 (trial 00000 at epoch 2)",
        "  lr=1",
        "Trial 00002 failed: rank 1 on a: ValueError: no such lr",
    ]
    assert "3 trials" in repr(three)
    assert repr(three.best) == "TrialResult(00000, FINISHED, value=0.2, reports=3)"
    assert pickle.loads(pickle.dumps(three)).best_config == three.best_config


def test_reading_results_imports_neither_torch_nor_lightning_and_works_without_ray(three):
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from tunelight.results import SweepResults, TrialResult\n"
        "print(SweepResults.load(sys.argv[1]).best.value)\n"
        "assert not {'torch', 'pytorch_lightning', 'pandas'} & set(sys.modules)"
    )
    assert printed_by(code, str(three.folder)) == "0.2\n"


def test_it_is_of_so_many_bytes_without_half_a_letter_or_a_password_and_what_is_no_text_hides_nothing(tmp_path):
    assert log_end(tmp_path) == ""
    (tmp_path / "log.txt").write_text("ä" * 5000, encoding="utf-8")
    assert log_end(tmp_path, size=101) == "ä" * 50
    (tmp_path / "log.txt").write_bytes(b"\xff\xfe\nafter")
    assert log_end(tmp_path).endswith("after")
    (tmp_path / "log.txt").write_text(f"{'x' * 60}\nconnect to https://me:hunter2@host/db")
    for size in range(5, 60):
        assert "hunter2" not in log_end(tmp_path, size=size)


def on_disk(written: Writer, trial: str, number: int, value: float | None, between: int = 0) -> Path:
    """Write a checkpoint that the record does not know."""
    return Path(written_checkpoint(written.folder / f"trial_{trial}", number, between, value=value).path)


@pytest.mark.parametrize(
    ("losses", "recorded", "number"),
    [((0.5, 0.2), 1, 2), ((0.2, 0.5, 0.2), 3, 1)],
    ids=["finished after the last report", "the earlier of those as good"],
)
def test_one_that_no_record_knows_counts(written: Writer, losses: Any, recorded: int, number: int) -> None:
    trial = written.trial(*losses)
    written.checkpoint(trial, recorded, losses[recorded - 1])
    assert on_disk(written, trial, number, 0.2) == written.load().best.checkpoint


def test_one_with_which_the_trial_left_in_the_midst_of_an_epoch_counts_as_old_as_it_is(written: Writer) -> None:
    trial = written.trial(0.5, 0.2)
    left = on_disk(written, trial, 1, None, between=20)
    assert written.load().trials[0].checkpoint == left
    with pytest.warns(UserWarning, match="of report 1 and the steps after it"):
        assert written.load().trials[0].of_another_report() == 1
    last = on_disk(written, trial, 2, None)
    assert written.load().trials[0].checkpoint == last  # although the record knows neither
    best = on_disk(written, trial, 1, 0.5)
    assert written.load().trials[0].checkpoint == best


def test_a_torn_one_says_so_and_those_that_are_whole_are_named(written: Writer) -> None:
    trial = written.trial(0.2, 0.5)
    best, _ = on_disk(written, trial, 1, 0.2), on_disk(written, trial, 2, 0.5)
    best.write_text("weigh")
    with pytest.raises(CheckpointError, match=r"report-000001.ckpt is torn.*report-000002.ckpt \(value 0.5\)"):
        written.load().best.load_model(Fake)


def test_diverged_and_oom_are_counted_and_no_errors(written: Writer) -> None:
    written.trial(0.5)
    written.trial(0.6, state="DIVERGED", error={"type_name": "FloatingPointError", "message": "loss is nan"})
    written.trial(state="OOM", error={**ERROR, "type_name": "MemoryError"})
    results = written.load()
    assert (results.counts["DIVERGED"], results.counts["OOM"], results.counts["ERROR"], results.errors) == (1, 1, 0, [])
    assert list(results.dataframe()["state"]) == ["FINISHED", "DIVERGED", "OOM"]
    assert "1 finished, 1 diverged, 1 oom" in results.summary()
    assert results.trials[1].error == "FloatingPointError: loss is nan"


SPACE = {"lr": tl.loguniform(1e-4, 1.0), "width": tl.choice([8, 16]), "odd": tl.randn(0.0, 1.0)}
STATES = ("FINISHED", "STOPPED", "ERROR", "OOM", "INTERRUPTED", "RUNNING")


@pytest.fixture
def ended(tmp_path: Path) -> SweepResults:
    """Return the results of a sweep with a trial of each state, which reported twice, and one that waits."""
    sweep = Sweep(tmp_path / "digits")
    for number, state in enumerate(STATES):
        trial = sweep.run(lr=0.1 * (number + 1), width=8, odd=0.5)
        for step in (1, 2):
            sweep.report(trial, step, 1.0 / (step + number))
        if state != "RUNNING":
            sweep.callback.record.append("state", trial=trial.trial_id, state=state)
    sweep.add(lr=0.9, width=16, odd=0.1)
    sweep.step()
    found = SweepResults.load(sweep.folder)
    sweep.callback.close()  # which ends what has not ended
    return SweepResults(sweep.folder, found.record, {"space": SPACE})


def test_each_trial_is_in_the_study_with_its_state_parameters_and_curve(ended: SweepResults) -> None:
    study = ended.to_study()
    assert study.study_name == "digits"
    assert study.metric_names == ["loss"]
    found = {trial.user_attrs["state"]: trial for trial in study.trials}
    assert [trial.user_attrs["trial"] for trial in study.trials] == [f"{number:05d}" for number in range(6)]
    assert {state: trial.state.name for state, trial in found.items()} == {
        "FINISHED": "COMPLETE", "STOPPED": "PRUNED", "ERROR": "FAIL", "OOM": "COMPLETE", "INTERRUPTED": "FAIL",
        "RUNNING": "RUNNING",
    }  # fmt: skip
    finished = found["FINISHED"]
    assert finished.params == {"lr": pytest.approx(0.1), "width": 8}
    assert finished.distributions["lr"] == optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)
    assert finished.user_attrs["odd"] == 0.5
    assert finished.intermediate_values == {1: 1.0, 2: 0.5}
    assert (finished.value, study.best_value) == (0.5, 0.5)
    assert finished.datetime_start is not None
    assert finished.datetime_complete is not None
    assert constraints_of(found["OOM"])["infeasible"] == 1.0
    assert found["RUNNING"].datetime_complete is None


def test_a_journal_and_a_database_hold_the_study_and_a_later_call_replaces_it(ended, tmp_path):
    for storage in (tmp_path / "new" / "study.journal", f"sqlite:///{tmp_path}/studies.db"):
        for _ in range(2):
            study = ended.to_study(storage)
            assert len(study.trials) == 6
        assert [trial.state for trial in study.get_trials(states=[TrialState.COMPLETE])] == [TrialState.COMPLETE] * 2
    again = optuna.load_study(study_name="digits", storage=f"sqlite:///{tmp_path}/studies.db")
    assert len(again.trials) == 6


def test_what_is_there_is_left_alone_and_what_cannot_be_written_an_error_without_its_password(ended, tmp_path):
    optuna.create_study(study_name="digits", storage=f"sqlite:///{tmp_path}/studies.db")
    with pytest.raises(SettingsError, match="holds a study 'digits' already"):
        ended.to_study(f"sqlite:///{tmp_path}/studies.db")
    file = tmp_path / "best.yaml"
    for text in ("a: 1\n", '{"a": 1}'):
        file.write_text(text)
        with pytest.raises(SettingsError, match="is no journal of Optuna's"):
            ended.to_study(file)
        assert file.read_text() == text
    with pytest.raises(StorageError, match="cannot be written"):
        ended.to_study(file / "study.journal")
    for address in ("postgresql://me:hunter2@localhost:1/studies", "nothing://me:hunter2@x", "sqlite:////no/such/x.db"):
        with pytest.raises(StorageError) as refused:
            ended.to_study(address)
        assert "hunter2" not in str(refused.value)


def test_a_journal_whose_last_line_is_cut_off_is_written_anew(ended: SweepResults, tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    ended.to_study(file)
    file.write_bytes(file.read_bytes()[:-20])
    assert len(ended.to_study(file).trials) == 6


def test_reading_a_sweep_imports_nothing_that_its_space_names(ended: SweepResults, tmp_path: Path) -> None:
    space = {"lr": {"loguniform": [1e-4, 1.0]}, "width": {"sample_from": "no_such_module:f"}, "odd": {"unknown": 3}}
    study = SweepResults(ended.folder, ended.record, {"space": space}).to_study()
    assert study.trials[0].params == {"lr": pytest.approx(0.1)}
    assert study.trials[0].user_attrs["width"] == 8


def test_several_metrics_are_several_directions(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "two")
    trial = sweep.run(lr=0.1)
    sweep.report(trial, 1, 0.5, speed=3.0)
    sweep.end_by_itself(trial)
    sweep.callback.close()
    told = {"metric": ["loss", "speed"], "mode": ["min", "max"], "space": {"lr": SPACE["lr"]}}
    study = SweepResults(sweep.folder, SweepResults.load(sweep.folder).record, told).to_study()
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.trials[0].values == [0.5, 3.0]
