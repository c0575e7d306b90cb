"""A sweep that version 0.1 recorded, and whose driver was killed in its second trial: it still opens and goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
"""Six trials of at most 30 epochs were asked for; trial 00000 finished, and trial 00001 had reported 8 epochs."""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "recorded"))


def test_it_is_shown_and_reported_on(recorded: Path) -> None:
    from tunelight.reporting import report

    results = tl.SweepResults.load(recorded)
    assert [(trial.state, len(trial.history)) for trial in results.trials] == [("FINISHED", 30), ("RUNNING", 8)]
    assert results.best.value == pytest.approx(0.355752, abs=1e-6)
    assert results.best.config == {"model.lr": 0.01437629576678331, "model.hidden": 16, "data.batch_size": 128}
    page = recorded / "report.html"
    report(results, page)
    assert "model.hidden" in page.read_text(encoding="utf-8")


def test_it_is_resumed_from_its_checkpoint_and_a_trial_of_it_is_reproduced(ray4: Any, recorded: Path) -> None:
    before = tl.SweepResults.load(recorded).trials
    results = tl.resume(recorded, progress=False)
    assert len(results.trials) == 6
    assert all(trial.state in {"FINISHED", "STOPPED"} for trial in results.trials)
    assert [trial.config for trial in results.trials[:2]] == [trial.config for trial in before]
    assert results.trials[1].history[:8] == before[1].history
    again = tl.reproduce(results, "00000", progress=False)
    assert again.reports == 30
    (trial,) = tl.SweepResults.load(again.folder).trials
    for new, old in zip(trial.history, before[0].history, strict=True):
        assert new["val_loss"] == pytest.approx(old["val_loss"], rel=1e-4)  # other processors round otherwise
