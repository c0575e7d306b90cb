"""Which trial is the best: of those that did not fail, and a failed one that had been ahead is named beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.recording import ERROR, Sweep, Writer
from tests.unit.cli.test_command import call
from tests.unit.reporting.test_report import inlined
from tunelight.errors import NoResultError
from tunelight.extras.figures import history, learning_curves
from tunelight.extras.report.page import page
from tunelight.record import read_record
from tunelight.reporting.words import best_line, end_line, summary
from tunelight.results import SweepResults

FAILED = ("ERROR", "OOM", "DIVERGED")


@pytest.fixture
def ahead(tmp_path: Path) -> SweepResults:
    """Return a sweep whose best report is that of a trial that failed afterwards."""
    written = Writer(tmp_path)
    written.trial(0.9, 0.4)
    written.trial(0.5, 0.1, state="ERROR", error=ERROR)
    written.trial(0.8, 0.6, state="STOPPED")
    return written.load()


@pytest.mark.parametrize("state", FAILED)
def test_a_trial_that_failed_is_not_the_best(tmp_path: Path, state: str) -> None:
    written = Writer(tmp_path)
    written.trial(0.4)
    written.trial(0.1, state=state, error=ERROR)
    found = written.load()
    assert found.best.id == "00000"
    assert found.best_config == {"lr": 1.0}
    assert [trial.id for trial in found.top(5)] == ["00000"]
    assert [trial.id for trial in found.pareto()] == ["00000"]
    assert found.trial("best").id == "00000"


@pytest.mark.parametrize("state", ["FINISHED", "STOPPED", "INTERRUPTED", "PAUSED", "RUNNING"])
def test_a_trial_that_did_not_fail_can_be_the_best(tmp_path: Path, state: str) -> None:
    written = Writer(tmp_path)
    written.trial(0.4)
    written.trial(0.1, state=state)
    assert written.load().best.id == "00001"


def test_the_one_that_was_ahead_is_named_beside_the_best(ahead: SweepResults) -> None:
    assert ahead.ahead is not None
    assert (ahead.ahead.id, ahead.ahead.state, ahead.ahead.value) == ("00001", "ERROR", 0.1)
    assert "Best loss: 0.4 (trial 00000 at epoch 2)" in ahead.summary()
    assert "Trial 00001, which failed, had reported loss=0.1" in ahead.summary()
    assert "best loss=0.4" in repr(ahead)


def test_a_failed_trial_that_was_behind_is_not_named(tmp_path: Path) -> None:
    written = Writer(tmp_path)
    written.trial(0.1)
    written.trial(0.4, state="ERROR", error=ERROR)
    found = written.load()
    assert found.ahead is None
    assert "which failed" not in found.summary()


def test_where_all_have_failed_there_is_no_best_and_the_error_names_the_one_to_look_at(tmp_path: Path) -> None:
    written = Writer(tmp_path)
    written.trial(0.4, state="OOM", error=ERROR)
    written.trial(0.1, state="ERROR", error=ERROR)
    found = written.load()
    with pytest.raises(NoResultError, match=r"each trial that reported 'loss' failed.*results\.trial\('00001'\)"):
        _ = found.best
    assert found.top(1) == []
    assert found.pareto() == []
    assert "Trial 00001, which failed, had reported loss=0.1" in found.summary()


def test_the_live_view_takes_the_best_back_when_its_trial_fails(sweep: Sweep, tmp_path: Path) -> None:
    first, second, third = (sweep.add(lr=number) for number in (1, 2, 3))
    for trial, loss in ((first, 0.5), (second, 0.1), (third, 0.3)):
        sweep.start(trial)
        sweep.report(trial, 1, loss)
    assert sweep.state.best is not None
    assert sweep.state.best.trial == "00001"
    sweep.fail(second, message="no")
    assert (sweep.state.best.trial, sweep.state.best.value) == ("00002", 0.3)
    assert best_line(sweep.state) == "best loss=0.3 by trial 00002 at epoch 1: lr=3 (0.1 by 00001, which failed)"
    line = end_line(sweep.state, sweep.state.trials["00001"], 3)
    assert "(best 0.3 by 00002; 0.1 by 00001, which failed)" in line
    assert "0.1 by 00001, which failed" in summary(sweep.state, sweep.clock())
    sweep.end()
    assert read_record(tmp_path).best == sweep.state.best


def test_a_failed_trial_that_goes_on_counts_again(sweep: Sweep) -> None:
    first, second = sweep.add(lr=1), sweep.add(lr=2)
    for trial, loss in ((first, 0.5), (second, 0.1)):
        sweep.start(trial)
        sweep.report(trial, 1, loss)
    sweep.fail(second, message="no")
    sweep.start(second)
    assert sweep.state.best is not None
    assert sweep.state.best.trial == "00001"
    assert sweep.state.ahead is None


def test_the_report_s_headline_is_no_failed_trial(ahead: SweepResults) -> None:
    shown = inlined(page(ahead))
    best = shown["state"]["head"]["best"]
    assert (best["trial"], best["among"]) == (0, "lowest of all trials that did not fail")
    assert "Trial 1, which failed, had reported loss=0.1" in str(shown["part-about"])


def test_figures_count_a_failed_trial_as_no_best(ahead: SweepResults) -> None:
    line = next(one for one in history(ahead).data if one.name == "best so far")
    assert list(line.y) == [0.4, 0.4, 0.4]
    assert any(one.name == "best: trial 0" for one in learning_curves(ahead).data)


def test_the_command_line_shows_and_exports_no_failed_trial(ahead: SweepResults, tmp_path: Path) -> None:
    assert "Trial 00001, which failed, had reported loss=0.1" in call("show", ahead.folder).output
    assert call("best", ahead.folder).output.startswith("Trial 00000: loss=0.4")
    assert "Trial 00001, which failed, had reported loss=0.1" in call("best", ahead.folder).output
    assert json.loads(call("best", ahead.folder, "--json").output)["trial"] == "00000"
    listed = json.loads(call("ls", ahead.folder.parent, "--json").output)
    assert listed[0]["best"]["trial"] == "00000"
    call("best", ahead.folder, "--export", tmp_path / "best.json")
    assert json.loads((tmp_path / "best.json").read_text())["trial"] == "00000"


def test_what_a_failed_trial_is_and_why_is_its_text(ahead: SweepResults) -> None:
    assert str(ahead.errors[0]) == "trial 00001 failed: rank 1 on a: ValueError: no such lr"
    assert "rank 1 on a: ValueError: no such lr" in repr(ahead.errors[0])
    assert str(ahead.trials[2]) == repr(ahead.trials[2])


def test_a_trial_has_what_was_remarked_on_it(tmp_path: Path) -> None:
    written = Writer(tmp_path)
    trials = [written.trial(0.4), written.trial(0.5)]
    for trial, text in (
        (trials[0], "went on from report 1"),
        (None, "a seed was drawn"),
        (trials[0], "grew to 4 workers"),
    ):
        written.record.append("note", trial=trial, text=text)
    read = SweepResults.load(written.folder)
    assert [trial.notes for trial in read.trials] == [["went on from report 1", "grew to 4 workers"], []]
