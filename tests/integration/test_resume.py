"""Sweeps that go on: cut off and resumed, extended, and refused where they are not the same sweep any more."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray

import tunelight as tl
from tunelight.errors import SettingsError

SPACE = {"lr": tl.loguniform(1e-3, 1e-1)}


class Cut(ray.tune.Callback):  # type: ignore[misc,unused-ignore]
    """Ends the sweep at its n-th report, as a person does by Ctrl-C."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)


def counting(config: dict[str, Any]) -> None:
    """Report config's lr over 4 steps; without a checkpoint, so that a trial begins anew."""
    with Path(tl.get_context().trial_dir, f"starts-{tl.get_context().rank}.txt").open("a") as log:
        print(tl.get_context().number, file=log)
    for step in range(1, 5):
        time.sleep(0.3 * (step == 4))  # a sweep that is cut off by one of the reports before ends here
        tl.report({"loss": config["lr"] / step})


def sweep(tmp_path: Path, train: Any = counting, space: Any = None, **kwargs: Any) -> tl.SweepResults:
    settings: dict[str, Any] = {
        "metric": "loss", "num_samples": 4, "seed": 7, "storage": tmp_path, "name": "s", "scheduler": "fifo",
        "progress": False, "resume": True, "max_concurrent": 1,
    }  # fmt: skip
    return tl.run(space or SPACE, train, **(settings | kwargs))


def model_sweep(tmp_path: Path, **kwargs: Any) -> tl.SweepResults:
    from tests.kit.training import Line, LineData  # workers of the other tests need no torch

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


@pytest.mark.slow
def test_a_cut_off_sweep_goes_on_and_is_extended_and_ends_as_one_in_one_go(ray4: Any, tmp_path: Path) -> None:
    whole = sweep(tmp_path, name="whole", num_samples=5)
    cut = sweep(tmp_path, num_samples=3, callbacks=[Cut(7)])
    assert [trial.state for trial in cut.trials][:2] == ["FINISHED", "INTERRUPTED"]
    with pytest.raises(SettingsError, match="only the name of callbacks"):
        tl.resume(tmp_path / "s")  # an object of the script's own
    first = tl.resume(tmp_path / "s", callbacks=[])
    assert told(first) == told(whole)[:3]
    starts = [(trial.path / "starts-0.txt").read_text().count("\n") for trial in first.trials]
    assert starts == [1, 2, 1]
    record = first.folder / "record.jsonl"
    before = record.read_bytes()
    assert sum(json.loads(line)["kind"] == "report" for line in before.splitlines()) == 12  # each once

    assert told(sweep(tmp_path, num_samples=3)) == told(first)  # nothing to do
    assert record.read_bytes() == before
    results = sweep(tmp_path, num_samples=5, seed=None)
    assert told(results) == told(whole)
    assert record.read_bytes().startswith(before)


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_sweep_of_that_name_is_refused_and_forced(ray4: Any, tmp_path: Path) -> None:
    sweep(tmp_path, num_samples=1)
    other = {"lr": tl.loguniform(1e-3, 1.0), "b": tl.uniform(0, 1)}

    def changed(config: dict[str, Any]) -> None:
        tl.report({"loss": 1.0})

    with pytest.raises(SettingsError, match=r"lr was .*0\.1\]} .* is .*1\.0\]}; b was absent in the search space"):
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
