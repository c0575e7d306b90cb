"""A sweep's trials as an Optuna study: states, parameters, curves, and where it is written."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

import tunelight as tl
from tests.kit.recording import Sweep
from tunelight.compat.optuna import constraints_of
from tunelight.errors import SettingsError, StorageError
from tunelight.results import SweepResults

SPACE = {"lr": tl.loguniform(1e-4, 1.0), "width": tl.choice([8, 16]), "odd": tl.randn(0.0, 1.0)}
STATES = ("FINISHED", "STOPPED", "ERROR", "OOM", "INTERRUPTED", "RUNNING")


@pytest.fixture
def results(tmp_path: Path) -> SweepResults:
    """Return the results of a sweep with a trial of each state, which reported twice, and one that waits."""
    (tmp_path / "digits").mkdir()
    sweep = Sweep(tmp_path / "digits")
    for number, state in enumerate(STATES):
        trial = sweep.add(lr=0.1 * (number + 1), width=8, odd=0.5)
        sweep.start(trial)
        for step in (1, 2):
            sweep.report(trial, step, 1.0 / (step + number))
        if state != "RUNNING":
            sweep.callback.record.append("state", trial=trial.trial_id, state=state)
    sweep.add(lr=0.9, width=16, odd=0.1)
    sweep.step()
    found = SweepResults.load(sweep.folder)
    sweep.callback.close()  # which ends what has not ended
    return SweepResults(sweep.folder, found.record, {"space": SPACE})


def test_each_trial_is_in_the_study_with_its_state_parameters_and_curve(results: SweepResults) -> None:
    study = results.to_study()
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


def test_a_journal_and_a_database_hold_the_study_and_a_later_call_replaces_it(
    results: SweepResults, tmp_path: Path
) -> None:
    for storage in (tmp_path / "new" / "study.journal", f"sqlite:///{tmp_path}/studies.db"):
        for _ in range(2):
            study = results.to_study(storage)
            assert len(study.trials) == 6
        assert [trial.state for trial in study.get_trials(states=[TrialState.COMPLETE])] == [TrialState.COMPLETE] * 2
    again = optuna.load_study(study_name="digits", storage=f"sqlite:///{tmp_path}/studies.db")
    assert len(again.trials) == 6


def test_another_study_of_that_name_is_left_alone(results: SweepResults, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/studies.db"
    optuna.create_study(study_name="digits", storage=address)
    with pytest.raises(SettingsError, match="holds a study 'digits' already"):
        results.to_study(address)


def test_a_storage_that_cannot_be_written_is_an_error_without_its_password(
    results: SweepResults, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        results.to_study(tmp_path / "file" / "study.journal")
    for address in ("postgresql://me:hunter2@localhost:1/studies", "nothing://me:hunter2@x", "sqlite:////no/such/x.db"):
        with pytest.raises(StorageError) as refused:
            results.to_study(address)
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", ["a: 1\n", '{"a": 1}'])
def test_a_file_that_is_no_journal_is_left_alone(results: SweepResults, tmp_path: Path, text: str) -> None:
    file = tmp_path / "best.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match="is no journal of Optuna's"):
        results.to_study(file)
    assert file.read_text() == text


def test_a_journal_whose_last_line_is_cut_off_is_written_anew(results: SweepResults, tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    results.to_study(file)
    file.write_bytes(file.read_bytes()[:-20])
    assert len(results.to_study(file).trials) == 6


def test_reading_a_sweep_imports_nothing_that_its_space_names(results: SweepResults, tmp_path: Path) -> None:
    space = {"lr": {"loguniform": [1e-4, 1.0]}, "width": {"sample_from": "no_such_module:f"}, "odd": {"unknown": 3}}
    study = SweepResults(results.folder, results.record, {"space": space}).to_study()
    assert study.trials[0].params == {"lr": pytest.approx(0.1)}
    assert study.trials[0].user_attrs["width"] == 8


def test_several_metrics_are_several_directions(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    sweep = Sweep(tmp_path / "two")
    trial = sweep.add(lr=0.1)
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, speed=3.0)
    sweep.end_by_itself(trial)
    sweep.callback.close()
    told = {"metric": ["loss", "speed"], "mode": ["min", "max"], "space": {"lr": SPACE["lr"]}}
    study = SweepResults(sweep.folder, SweepResults.load(sweep.folder).record, told).to_study()
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.trials[0].values == [0.5, 3.0]
