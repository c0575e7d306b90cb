"""A sweep that the newest released version has recorded goes on: the trial that was cut off from its checkpoint."""

from __future__ import annotations

import sys

import tunelight as tl
from tests.formats import FORMATS, unpacked


def test_a_sweep_of_the_last_version_goes_on(ray4, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FORMATS))
    folder = unpacked(tmp_path)
    before = tl.SweepResults.load(folder).trials
    try:
        results = tl.resume(folder, progress=False)
    finally:
        sys.modules.pop("recorded_model", None)
    assert len(results) == 5
    assert {trial.state for trial in results.trials if trial.id != "00001"} <= {"FINISHED", "STOPPED"}
    assert [trial.config for trial in results.trials[:4]] == [trial.config for trial in before]
    cut_off = results.trials[3]
    assert cut_off.history[:1] == before[3].history
    assert len(cut_off.history) > 1
    assert "report-000001.ckpt" in (cut_off.path / "log.txt").read_text()  # which Lightning has restored
