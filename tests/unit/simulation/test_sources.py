"""Where a simulation's curves come from: the recorded table, and sweeps that were run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.curves import tiny_table
from tests.unit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.simulation import SweepCurves, recorded, simulate, tasks

# --- the recorded table -----------------------------------------------------------------------------------


@pytest.fixture
def recorded_table(tmp_path: Path) -> Path:
    """A table file of two tasks, three configurations, two seeds and four epochs."""
    loss = np.arange(24, dtype=np.float16).reshape(3, 2, 4)
    loss[2, :, 2:] = np.nan
    configs = np.array([json.dumps({"lr": 0.1 * (1 + n), "kind": "abc"[n]}) for n in range(3)])
    seconds = np.array([1, 2, 3], dtype=np.float32)
    arrays: dict[str, Any] = {}
    for task in ("digits", "far/away"):
        arrays |= {
            f"{task}/loss": loss,
            f"{task}/accuracy": -loss,
            f"{task}/seconds": seconds,
            f"{task}/configs": configs,
        }
    path = tmp_path / "curves.npz"
    np.savez_compressed(path, **arrays)
    return path


def test_a_recorded_task_is_read_as_it_was_written(recorded_table: Path):
    assert tasks(recorded_table) == ["digits", "far/away"]
    table = recorded("digits", path=recorded_table)
    assert (table.size, table.epochs, table.metric, table.mode) == (3, 4, "loss", "min")
    config = table.config(0, 0)
    curve = table.curve(config)
    number, seed = (int(part) for part in config["_curve"].split(":"))
    assert config["kind"] == "abc"[number]
    assert curve.seconds == number + 1
    assert curve.at(1) == {"loss": 8.0 * number + 4 * seed, "accuracy": -(8.0 * number + 4 * seed)}
    assert recorded("digits", path=recorded_table, metric="accuracy").mode == "max"
    with pytest.raises(SettingsError, match=r"'digit'.*Did you mean 'digits'"):
        recorded("digit", path=recorded_table)


def test_curves_are_cut_or_stretched_to_the_epochs_that_are_asked_for(recorded_table: Path):
    config = {"_curve": "0:0"}
    assert recorded("digits", path=recorded_table, epochs=2).curve(config).metrics["loss"] == [0, 1]
    assert recorded("digits", path=recorded_table, epochs=8).curve(config).metrics["loss"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert recorded("digits", path=recorded_table, epoch_s=7.0).curve(config).seconds == 7


def test_a_suggestion_is_looked_up_by_rank_and_by_name(recorded_table: Path):
    table = recorded("digits", path=recorded_table)
    assert table.curve({"lr": 0.21, "kind": "b"}).seconds == 2
    assert table.curve({"lr": 50.0}).seconds == 3
    assert table.curve({"kind": "a", "unknown": 4}).seconds == 1
    with pytest.raises(SettingsError, match=r"none of the keys .* lr, kind"):
        table.curve({"unknown": 4})


def test_more_trials_than_curves_are_said_to_come_more_than_once():
    run = simulate(tiny_table(), num_samples=50, cluster="2x4")
    assert any("50 trials were drawn from 40 curves" in note for note in run.notes)
    assert not any("drawn from" in note for note in simulate(tiny_table(), num_samples=5).notes)


# --- sweeps that were run ---------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A sweep of three trials with gangs of two: four reports, four reports, and one that was stopped at its first."""
    sweep = Sweep(tmp_path, name="digits")
    for number, reports in enumerate((4, 4, 1)):
        trial = sweep.add(lr=number)
        sweep.step()
        sweep.start(trial)
        for report in range(1, reports + 1):
            sweep.clock.now += 3.0
            sweep.report(trial, report, 1.0 / report + number, timestamp=sweep.clock.now)
        sweep.call("on_trial_complete", trial=trial)
    sweep.callback.close()
    return tmp_path


def test_a_sweep_that_was_run_is_simulated_from_its_folder(finished: Path):
    run = simulate(finished, scheduler="fifo", num_samples=3, workers=2, cluster="1x2", max_epochs=4)
    assert [trial.config["lr"] for trial in run.trials] == [0, 1, 2]
    assert run.best == 0.25
    assert [trial.extrapolated for trial in run.trials] == [False, False, True]
    assert any("of whose 3 trials" in note for note in run.notes)
    curve = SweepCurves(finished).curve(SweepCurves(finished).config(2, 0))
    assert curve.seconds == 6.0  # of one worker: two took 3 s, and the third trial's own is not known
    assert curve.epochs == 1


def test_a_folder_without_a_report_is_refused(tmp_path: Path):
    sweep = Sweep(tmp_path, name="empty")
    sweep.add(lr=1)
    sweep.step()
    sweep.callback.close()
    with pytest.raises(SettingsError, match="holds no report"):
        simulate(tmp_path)
