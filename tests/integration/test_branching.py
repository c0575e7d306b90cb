"""Somebody branches trials of a sweep that trains: with what a branch begins, trains, yields, and survives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.tune import Callback
from typer.testing import CliRunner

import tunelight as tl
from tests.integration.branching import SPACE, first_step, of
from tests.integration.person import wait, with_person
from tunelight.cli import app
from tunelight.errors import SettingsError
from tunelight.record import Branch

ROOT = Path(__file__).parents[2]
METRICS = ("training_iteration", "epoch", "val_loss", "train_loss")


def branched(folder: Path, person: Callable[[Any], None], **more: Any) -> tl.SweepResults:
    """Run the sweep, with somebody beside it from a moment after the first report on; what fails there fails here."""

    def later(sweep: Any) -> None:
        time.sleep(0.3)
        person(sweep)

    return with_person(later, folder, lambda: tl.run(SPACE, **of(folder, **more)), reports=1)


def told(trial: Any) -> list[dict[str, Any]]:
    return [{name: report[name] for name in METRICS} for report in trial.history]


def began(trial: Any) -> Branch:
    assert trial.branch is not None
    branch: Branch = trial.branch
    return branch


def states(folder: Path) -> list[str]:
    return [trial.state for trial in tl.SweepResults.load(folder / "s").every_trial]


def test_a_branch_trains_as_its_parent_goes_on_and_with_what_was_changed(ray4: Any, tmp_path: Path) -> None:
    def person(sweep: Any) -> None:
        assert "with nothing changed" in sweep.branch(0)
        sweep.branch(0, {"model.lr": 0.05, "model.drop": 0.0}, keep=True)
        sweep.branch("best", {"model.hidden": 16})

    results = branched(tmp_path, person, baselines=[{"model.lr": 0.01, "model.hidden": 8, "model.drop": 0.2}])
    parent, same, other, misfit = results.every_trial
    assert [trial.state for trial in results.every_trial] == ["FINISHED", "FINISHED", "FINISHED", "ERROR"]
    assert told(same) == told(parent)[began(same).number :]  # bit by bit: data, dropout and the optimizer's moments
    number = began(other).number
    assert [report["training_iteration"] for report in other.history] == list(range(number + 1, 6))
    assert first_step(other.path)[1:3] == (began(other).step or 20 * number, 0.05)
    assert told(other) != told(parent)[number:]
    assert "model.hidden=16, not 8, makes another model" in str(misfit.error)
    assert (began(other).parent, began(other).keep) == ("00000", True)
    assert other.changes[0]["before"] == {"model.lr": 0.01, "model.hidden": 8, "model.drop": 0.2}
    shown = CliRunner().invoke(app, ["show", str(results.folder), "2"]).output
    assert f"branch of   00000 after {began(other).where}" in shown
    report = CliRunner().invoke(app, ["report", str(results.folder), "--out", str(tmp_path / "r.html")])
    assert report.exit_code == 0, report.output
    assert f"began with the state of trial 00000 after {began(other).where}" in (tmp_path / "r.html").read_text()

    shutil.rmtree(parent.path)  # the branch has what it needs
    with pytest.raises(SettingsError, match="it had the weights of trial 00000"):
        tl.reproduce(results, 2, progress=False)
    longer = tl.run(SPACE, **of(tmp_path, resume=True, max_epochs=6))
    assert [report["training_iteration"] for report in longer.trial(2).history] == list(range(number + 1, 7))


def test_where_there_is_no_room_another_trial_yields_and_goes_on_later(ray4: Any, tmp_path: Path) -> None:
    class Hears(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            if not result.get("done"):
                heard[trial.trial_id].append(result["training_iteration"])

    def person(sweep: Any) -> None:
        wait(lambda: sorted(states(tmp_path)) == ["PENDING", "RUNNING", "RUNNING"])
        assert sweep.branch(0).startswith("trial 00003 begins")  # before the one that waits
        wait(lambda: "PAUSED" in states(tmp_path))

    heard: dict[str, list[int]] = defaultdict(list)
    results = branched(tmp_path, person, workers=2, cpus_per_worker=1, num_samples=3, callbacks=[Hears()])
    assert [trial.state for trial in results.every_trial] == ["FINISHED"] * 4
    number = began(results.every_trial[3]).number
    assert [len(trial.history) for trial in results] == [5, 5, 5, 5 - number]
    (gang,) = results.record.trials["00003"].gangs
    assert gang["warm"]  # that of the trial that yielded
    assert told(results.every_trial[3]) == told(results.every_trial[0])[number:]
    assert all(numbers == sorted(set(numbers)) for numbers in heard.values())  # nobody hears of a report twice


def test_a_parent_that_is_killed_before_it_has_written_gives_its_branch_the_state_that_it_comes_to(
    ray4: Any, tmp_path: Path
) -> None:
    def person(sweep: Any) -> None:
        trial = tmp_path / "s" / "trial_00000"
        thread = threading.Thread(target=lambda: said.append(sweep.branch(0)))
        os.kill(first_step(trial)[0], signal.SIGSTOP)  # it reaches no step
        thread.start()
        time.sleep(0.5)
        os.kill(first_step(trial)[0], signal.SIGKILL)
        thread.join(30)

    said: list[str] = []
    results = branched(tmp_path, person)
    assert said
    assert [trial.state for trial in results.every_trial] == ["FINISHED"] * 2
    assert told(results.every_trial[1]) == told(results.every_trial[0])[-len(results.every_trial[1].history) :]


@pytest.mark.apart
def test_a_driver_that_is_killed_before_a_branch_has_begun_goes_on_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.branching", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT) as driver:
        try:
            record = tmp_path / "s" / "record.jsonl"
            wait(lambda: record.exists() and '"report"' in record.read_text())
            (tmp_path / "s" / "holds").touch()
            tl.attach("s", tmp_path).branch(0, {"model.lr": 0.05})
            wait(lambda: '"trial":"00001"' in record.read_text())
        finally:
            driver.kill()
    (tmp_path / "s" / "holds").unlink()
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    parent, branch = tl.SweepResults.load(tmp_path / "s").every_trial
    assert [parent.state, branch.state] == ["FINISHED"] * 2
    assert [report["training_iteration"] for report in branch.history] == list(range(began(branch).number + 1, 6))
    assert first_step(branch.path)[1:3] == (began(branch).step or 20 * began(branch).number, 0.05)
