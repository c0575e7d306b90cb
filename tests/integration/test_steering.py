"""A person takes the wheel of a sweep that runs: each command by its answer, its effect, and the record."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.integration.person import with_person
from tests.kit.training import Line, LineData
from tests.kit.waiting import until
from tunelight.errors import CommandError

wait = functools.partial(until, limit_s=40, every_s=0.1)


class Slow(Line):
    """Takes its time, so that there is a trial to act upon."""

    def on_train_epoch_end(self) -> None:
        time.sleep(0.2)


def steered(folder: Path, person: Callable[[tl.SweepResults, Any], None], **settings: Any) -> tl.SweepResults:
    """Run a sweep, and ``person`` beside it from the first reports on; what fails there fails here."""
    told = {
        "model": Slow, "data": LineData, "max_epochs": 40, "metric": "val_loss", "num_samples": 2, "workers": 1,
        "cpus_per_worker": 0.5, "max_concurrent": 2, "seed": 1, "trainer_args": {"accelerator": "cpu"},
        "storage": folder, "name": "s", "progress": False,
    }  # fmt: skip
    return with_person(
        lambda sweep: person(tl.SweepResults.load(folder / "s"), sweep),
        folder,
        lambda: tl.run({"model.lr": tl.uniform(0.01, 0.1)}, **{**told, **settings}),
        reports=3,
    )


def states(folder: Path) -> list[str]:
    return [trial.state for trial in tl.SweepResults.load(folder / "s").trials]


@pytest.mark.parametrize("scheduler", ["asha", "fifo"])
def test_a_sweep_is_stopped_and_changed_while_it_runs_and_loses_no_report(
    ray4: Any, tmp_path: Path, scheduler: str
) -> None:
    def person(results: tl.SweepResults, sweep: Any) -> None:
        sweep.enqueue({"model.lr": 0.05})
        assert sweep.stop(0) == "stopped by command"
        wait(lambda: len(states(tmp_path)) == 3)
        wait(lambda: len(tl.SweepResults.load(tmp_path / "s").trials[1].history) > 6)
        sweep.stop()

    # No rung but the first, at which both are: what stops a trial here is a person.
    rule: Any = {"name": "asha", "grace_period": 30, "max_t": 40} if scheduler == "asha" else "fifo"
    results = steered(tmp_path, person, scheduler=rule)
    assert [trial.state for trial in results.trials] == ["STOPPED", "INTERRUPTED", "INTERRUPTED"]
    assert results.trials[2].config == {"model.lr": 0.05}
    for trial in results.trials:
        numbers = [report["training_iteration"] for report in trial.history]
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(results.record.answers) == 3
    again = steered(tmp_path, lambda _, sweep: sweep.stop(), scheduler=rule, resume=True)
    assert [trial.state for trial in again.trials] == ["STOPPED", "INTERRUPTED", "INTERRUPTED"]
    assert [len(trial.history) for trial in again.trials] >= [len(trial.history) for trial in results.trials]


class SlowWhereFast(Slow):
    """Takes long for a step where it learns fast."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        time.sleep(1.0 if self.lr > 0.05 else 0.0)


def test_a_trial_that_is_stopped_before_its_first_report_is_said_by_nobody_but_tunelight(
    ray4: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def person(results: tl.SweepResults, sweep: Any) -> None:
        wait(lambda: states(tmp_path) == ["RUNNING", "RUNNING"])
        sweep.stop(1)
        wait(lambda: states(tmp_path)[1] == "STOPPED")
        sweep.stop()

    told = {"model": SlowWhereFast, "baselines": [{"model.lr": 0.01}, {"model.lr": 0.09}], "scheduler": "fifo"}
    results = steered(tmp_path, person, **told)
    assert [len(trial.history) > 0 for trial in results.trials] == [True, False]
    assert capsys.readouterr().out == ""  # progress=False, and Tune prints nothing either


def test_nobody_steers_a_sweep_that_has_ended(ray4: Any, tmp_path: Path) -> None:
    tl.run(
        {"model.lr": tl.uniform(0.01, 0.1)}, model=Line, data=LineData, max_epochs=1, metric="val_loss", num_samples=1,
        workers=1, trainer_args={"accelerator": "cpu"}, storage=tmp_path, name="s", progress=False,
    )  # fmt: skip
    with pytest.raises(CommandError, match="No process runs the sweep s, so it cannot be told to stop"):
        tl.attach("s", tmp_path).stop()
