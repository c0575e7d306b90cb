"""Somebody branches trials of a sweep that trains: with what a branch begins, and that it trains on by itself."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import tunelight as tl
from tests.integration.leaving import Data, Slow, settings
from tests.kit.waiting import until
from tunelight.cli import app
from tunelight.errors import CommandError, SettingsError
from tunelight.record import Branch, driver_of

METRICS = ("training_iteration", "epoch", "val_loss", "train_loss")
SPACE = {
    "model.lr": tl.loguniform(0.001, 0.1), "model.hidden": tl.choice([8, 16]), "model.drop": tl.uniform(0.0, 0.5),
}  # fmt: skip
wait = functools.partial(until, limit_s=240, every_s=0.05)


class Net(Slow):
    """Says at which step it begins, and with which learning rate its optimizer does."""

    def __init__(self, lr: float = 0.1, hidden: int = 8, drop: float = 0.2) -> None:
        super().__init__(lr)
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Dropout(drop), torch.nn.Linear(hidden, 1))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        begins = Path(tl.get_context().trial_dir, "begins.txt")
        if self.global_rank == 0 and not begins.exists():
            begins.write_text(f"{self.global_step} {self.trainer.optimizers[0].param_groups[0]['lr']}")
        return super().training_step(batch, number)


class Few(Data):
    """Epochs of less than a second."""

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(2 * 20 * 4, True)


def first_step(trial: Path) -> tuple[int, float]:
    """Return the step at which a trial began, and its rate."""
    step, rate = (trial / "begins.txt").read_text().split()
    return int(step), float(rate)


def of(folder: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of the sweep."""
    return settings(folder, "s", **{"model": Net, "data": Few, "max_epochs": 5, "cpus_per_worker": 0.5, **more})


def branched(folder: Path, person: Callable[[Any], None], **more: Any) -> tl.SweepResults:
    """Run the sweep, with somebody beside it from a moment after the first report on; what fails there fails here."""
    failed: list[BaseException] = []

    def act() -> None:
        record = folder / "s" / "record.jsonl"
        try:
            wait(lambda: driver_of(folder / "s") is not None)
            wait(lambda: record.exists() and '"report"' in record.read_text())
            time.sleep(0.3)
            person(tl.attach("s", folder))
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            failed.append(error)
            with contextlib.suppress(CommandError):
                tl.attach("s", folder).stop()

    thread = threading.Thread(target=act)
    thread.start()
    results = tl.run(SPACE, **of(folder, **more))
    thread.join(60)
    if failed:
        raise failed[0]
    return results


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
    assert first_step(other.path) == (20 * number, 0.05)
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
