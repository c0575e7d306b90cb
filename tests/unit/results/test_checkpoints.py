"""results: checkpoints that no record knows, and torn ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.recording import ERROR, Writer
from tests.unit.results.test_results import Fake
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import CheckpointError
from tunelight.messages import CheckpointInfo


@pytest.fixture
def written(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def on_disk(written: Writer, trial: str, number: int, value: float | None, between: int = 0) -> Path:
    """Write a checkpoint that the record does not know."""
    folder = written.folder / f"trial_{trial}" / checkpoints.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    info = CheckpointInfo(str(folder / checkpoints.file_name(number, between)), number, value=value, between=between)
    checkpoints.temp_path(info, "start").write_text("weights")
    return Path(checkpoints.commit(info, checkpoints.temp_path(info, "start")).path)


def test_one_that_was_finished_after_the_last_report_counts(written: Writer) -> None:
    trial = written.trial(0.5, 0.2)
    written.checkpoint(trial, 1, 0.5)
    last = on_disk(written, trial, 2, 0.2)
    assert written.load().best.checkpoint == last


def test_one_with_which_the_trial_left_in_the_midst_of_an_epoch_counts_as_old_as_it_is(written: Writer) -> None:
    trial = written.trial(0.5, 0.2)
    left = on_disk(written, trial, 1, None, between=20)
    assert written.load().trials[0].checkpoint == left
    last = on_disk(written, trial, 2, None)
    assert written.load().trials[0].checkpoint == last  # although the record knows neither
    best = on_disk(written, trial, 1, 0.5)
    assert written.load().trials[0].checkpoint == best


def test_a_torn_one_says_so_and_those_that_are_whole_are_named(written: Writer) -> None:
    trial = written.trial(0.2, 0.5)
    best, _ = on_disk(written, trial, 1, 0.2), on_disk(written, trial, 2, 0.5)
    best.write_text("weigh")
    with pytest.raises(CheckpointError, match=r"report-000001.ckpt is torn.*report-000002.ckpt \(value 0.5\)"):
        written.load().best.load_model(Fake)


def test_diverged_and_oom_are_counted_and_no_errors(written: Writer) -> None:
    written.trial(0.5)
    written.trial(0.6, state="DIVERGED", error={"type_name": "FloatingPointError", "message": "loss is nan"})
    written.trial(state="OOM", error={**ERROR, "type_name": "MemoryError"})
    results = written.load()
    assert (results.num_diverged, results.num_oom, results.num_errors, results.errors) == (1, 1, 0, [])
    assert list(results.dataframe()["state"]) == ["FINISHED", "DIVERGED", "OOM"]
    assert "1 finished, 1 diverged, 1 oom" in results.summary()
    assert results.trials[1].error == "FloatingPointError: loss is nan"
