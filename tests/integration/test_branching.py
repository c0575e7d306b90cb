"""Somebody branches trials of a sweep that trains: with what a branch begins, trains, and survives."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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


def test_a_branch_trains_as_its_parent_goes_on_and_with_what_was_changed(ray4: Any, tmp_path: Path) -> None:
    def person(sweep: Any) -> None:
        assert "with nothing changed" in sweep.branch(0)
        sweep.branch(0, {"model.lr": 0.05, "model.drop": 0.0})
        sweep.branch("best", {"model.hidden": 16})

    results = branched(tmp_path, person, baselines=[{"model.lr": 0.01, "model.hidden": 8, "model.drop": 0.2}])
    parent, same, other, misfit = results.every_trial
    assert [trial.state for trial in results.every_trial] == ["FINISHED", "FINISHED", "FINISHED", "ERROR"]
    assert told(same) == told(parent)[began(same).number :]  # bit by bit: data, dropout and the optimizer's moments
    number = began(other).number
    assert [report["training_iteration"] for report in other.history] == list(range(number + 1, 6))
    assert first_step(other.path)[1:3] == (20 * number, 0.05)
    assert told(other) != told(parent)[number:]
    assert "model.hidden=16, not 8, makes another model" in str(misfit.error)
    assert began(other).parent == "00000"
    assert other.changes[0]["before"] == {"model.lr": 0.01, "model.hidden": 8, "model.drop": 0.2}
    shown = CliRunner().invoke(app, ["show", str(results.folder), "2"]).output
    assert f"branch of   00000 after report {number}" in shown
    report = CliRunner().invoke(app, ["report", str(results.folder), "--out", str(tmp_path / "r.html")])
    assert report.exit_code == 0, report.output
    assert f"began with the state of trial 00000 after report {number}" in (tmp_path / "r.html").read_text()

    shutil.rmtree(parent.path)  # the branch has what it needs
    with pytest.raises(SettingsError, match="it had the weights of trial 00000"):
        tl.reproduce(results, 2, progress=False)
    longer = tl.run(SPACE, **of(tmp_path, resume=True, max_epochs=6))
    assert [report["training_iteration"] for report in longer.trial(2).history] == list(range(number + 1, 7))


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
    assert first_step(branch.path)[1:3] == (20 * began(branch).number, 0.05)
