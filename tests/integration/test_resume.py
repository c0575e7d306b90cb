"""Sweeps that go on: cut off and resumed, extended, and refused where they are not the same sweep any more."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

import tunelight as tl
from tests.integration.training import Line, LineData
from tunelight.errors import SettingsError, StorageError

SPACE = {"lr": tl.loguniform(1e-3, 1e-1)}


class Cut(ray.tune.Callback):  # type: ignore[misc,unused-ignore]
    """Ends the sweep at its n-th report, as a supervisor does."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGTERM)


def counting(config: dict[str, Any]) -> None:
    """Report config's lr over 4 steps; without a checkpoint, so that a trial begins anew."""
    with Path(tl.get_context().trial_dir, f"starts-{tl.get_context().rank}.txt").open("a") as log:
        print(tl.get_context().number, file=log)
    for step in range(1, 5):
        tl.report({"loss": config["lr"] / step})


def sweep(tmp_path: Path, train: Any = counting, space: Any = None, **kwargs: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "loss", "num_samples": 4, "seed": 7, "storage": tmp_path, "name": "s", "scheduler": "fifo",
        "progress": False, "resume": True, "max_concurrent": 1,
    }  # fmt: skip
    return tl.run(space or SPACE, train, **(settings | kwargs))


def model_sweep(tmp_path: Path, **kwargs: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "val_loss", "num_samples": 4, "seed": 1, "storage": tmp_path, "name": "m", "progress": False,
        "max_concurrent": 1, "trainer_args": {"accelerator": "cpu"}, "resume": True, "max_epochs": 2,
        "scheduler": {"name": "asha", "reduction_factor": 2},
    }  # fmt: skip
    return tl.run({"model.lr": tl.uniform(0.01, 0.1)}, model=Line, data=LineData, **(settings | kwargs))


def told(results: tl.SweepResults) -> list[Any]:
    """Return what must be the same, however often a sweep was cut off: states, configurations, reports."""
    kept = ("loss", "val_loss", "training_iteration")
    return [
        (trial.id, trial.state, trial.config, [{k: r[k] for k in kept if k in r} for r in trial.history])
        for trial in results.trials
    ]


def test_a_cut_off_sweep_goes_on_and_ends_as_one_that_was_not(ray4: Any, tmp_path: Path) -> None:
    whole = sweep(tmp_path, name="whole")
    between = sweep(tmp_path, callbacks=[Cut(7)])
    assert [trial.state for trial in between.trials][:2] == ["FINISHED", "INTERRUPTED"]
    results = sweep(tmp_path)
    assert told(results) == told(whole)
    starts = [(trial.path / "starts-0.txt").read_text().count("\n") for trial in results.trials]
    assert starts == [1, 2, 1, 1]
    lines = [json.loads(line) for line in (results.folder / "record.jsonl").read_bytes().splitlines()]
    assert sum(line["kind"] == "report" for line in lines) == 16  # those made again are not recorded again


def test_more_samples_are_added_and_a_finished_sweep_returns_at_once(ray4: Any, tmp_path: Path) -> None:
    whole = sweep(tmp_path, name="whole", num_samples=5)
    first = sweep(tmp_path, num_samples=3)
    record = first.folder / "record.jsonl"
    before = record.read_bytes()
    assert told(sweep(tmp_path, num_samples=3)) == told(first)
    assert record.read_bytes() == before
    results = sweep(tmp_path, num_samples=5, seed=None)
    assert told(results)[:3] == told(first)
    assert told(results) == told(whole)
    assert record.read_bytes().startswith(before)


def test_more_epochs_train_the_survivors_on_and_leave_what_was_stopped(ray4: Any, tmp_path: Path) -> None:
    first = model_sweep(tmp_path)
    states = [trial.state for trial in first.trials]
    assert set(states) == {"FINISHED", "STOPPED"}
    results = model_sweep(tmp_path, max_epochs=4)
    for before, now in zip(first.trials, results.trials, strict=True):
        assert now.history[: len(before.history)] == before.history
        assert now.config == before.config
        if before.state == "STOPPED":
            assert (now.state, now.history) == ("STOPPED", before.history)
        else:
            assert [report["epoch"] for report in now.history][:3] == [0, 1, 2]  # 2: from the checkpoint of 1
    with pytest.raises(SettingsError, match=r"max_epochs=2 is less than the 4"):
        model_sweep(tmp_path)


def test_another_sweep_of_that_name_is_refused_and_forced(ray4: Any, tmp_path: Path) -> None:
    sweep(tmp_path, num_samples=1)
    other = {"lr": tl.loguniform(1e-3, 1.0), "b": tl.uniform(0, 1)}

    def changed(config: dict[str, Any]) -> None:
        tl.report({"loss": 1.0})

    with pytest.raises(SettingsError, match=r"lr was .*0\.1\]} .* is .*1\.0\]}; the search space had no b"):
        sweep(tmp_path, space=other)
    with pytest.raises(SettingsError, match="mode was 'min' and is 'max'"):
        sweep(tmp_path, mode="max")
    with pytest.raises(SettingsError, match=r"train was .*counting' and is .*changed'"):
        sweep(tmp_path, changed)
    with pytest.raises(SettingsError, match="seed was 7 and is 8"):
        sweep(tmp_path, seed=8)
    with pytest.warns(UserWarning, match="train was .* goes on all the same"):
        results = sweep(tmp_path, changed, num_samples=2, resume="force")
    assert [len(trial.history) for trial in results.trials] == [4, 1]


def test_a_sweep_is_resumed_by_its_folder_alone(ray4: Any, tmp_path: Path) -> None:
    sweep(tmp_path, num_samples=2, callbacks=[Cut(6)])
    with pytest.raises(SettingsError, match="callbacks"):
        tl.resume(tmp_path / "s")  # an object of the script's own
    results = tl.resume(tmp_path / "s", callbacks=[], num_samples=3)
    assert [trial.state for trial in results.trials] == ["FINISHED"] * 3
    assert [len(trial.history) for trial in results.trials] == [4] * 3


def test_a_damaged_record_is_kept_beside_what_could_be_saved(ray4: Any, tmp_path: Path) -> None:
    first = sweep(tmp_path, num_samples=2)
    record = first.folder / "record.jsonl"
    record.write_bytes(record.read_bytes().replace(b'"training_iteration":2', b'"training_iteration":9', 1))
    with pytest.raises(StorageError, match=r"line \d+: corrupt .*resume='force'"):
        sweep(tmp_path, num_samples=2)
    with pytest.warns(UserWarning, match=r"1 of \d+ lines of record.jsonl are damaged .*record.jsonl.bad-1"):
        results = sweep(tmp_path, num_samples=2, resume="force")
    assert [len(trial.history) for trial in results.trials] == [3, 4]
    assert (results.folder / "record.jsonl.bad-1").exists()
