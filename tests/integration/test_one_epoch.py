"""The scheduler one_epoch, live: the best two of six trials train to the end, also in a sweep that is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.integration.test_elastic import states
from tests.integration.test_growth import groups
from tests.integration.test_resume import Cut, told
from tests.integration.training import Line, LineData

EPOCHS = 4


def sweep(tmp_path: Path, name: str, **more: Any) -> tl.SweepResults:
    return tl.run(
        {"model.lr": tl.uniform(0.01, 0.1)}, model=Line, data=LineData, metric="val_loss", num_samples=6, seed=1,
        max_epochs=EPOCHS, workers=2, max_concurrent=2, scheduler={"name": "one_epoch", "keep": 2}, storage=tmp_path,
        name=name, trainer_args={"accelerator": "cpu"}, progress=False, **more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_best_two_of_six_go_on_and_a_sweep_that_was_cut_off_ends_the_same(ray4: Any, tmp_path: Path) -> None:
    results = sweep(tmp_path, "whole")
    assert not results.errors
    ranked = sorted(results.trials, key=lambda trial: trial.history[0]["val_loss"])
    for place, trial in enumerate(ranked):
        epochs = [report["epoch"] for report in trial.history]
        if place < 2:
            assert (trial.state, epochs, trial.stop_reason) == ("FINISHED", list(range(EPOCHS)), None)
            assert "PAUSED" in states(results, trial.id)
        else:
            assert (trial.state, epochs) == ("STOPPED", [0])
            assert str(trial.stop_reason).startswith("place ")
            assert str(trial.stop_reason).endswith(" at rung 1; the best 2 go on")
    assert not [name for name in groups(ray4) if name.startswith("tunelight")]

    for reports in (3, 8):  # while all train an epoch, and while the best ones go on
        cut = sweep(tmp_path, f"cut-{reports}", callbacks=[Cut(reports)])
        assert {trial.state for trial in cut.trials} & {"INTERRUPTED"}
        assert told(tl.resume(cut.folder, callbacks=[])) == told(results)
