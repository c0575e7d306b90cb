"""A sweep whose search has ended by its rule: what a resumed one does, and where the rule is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

import tunelight as tl
from tests.unit.recording import Sweep
from tunelight.errors import SettingsError
from tunelight.record import read_record, read_sweep_file, write_sweep_file
from tunelight.resources import reserve
from tunelight.results import SweepResults
from tunelight.settings import Settings
from tunelight.settings.repeats import Repeats
from tunelight.space import SearchSpace
from tunelight.space.check import check_settings
from tunelight.sweep import run as sweeps
from tunelight.sweep.past import open_saved_sweep, sweep_file_of

SPACE = SearchSpace({"x": tl.uniform(0, 1)})
WHY = "stop_when: after 30 trials, no more"


def train(config: dict[str, Any]) -> None:
    """Never run."""


def recorded(storage: Path, *, over: bool = True, cut: bool = False, last: float = 0.5, **told: Any) -> Settings:
    """Record 30 trials, after which the rule may have ended the search; the last of them may be cut off."""
    given: dict[str, Any] = {"num_samples": 50, "stop_when": "no_better:0.1", **told}
    settings = Settings(train=train, metric="loss", name="s", storage=storage, seed=1, scheduler="fifo", **given)
    (storage / "s").mkdir()
    sweep = Sweep(storage / "s", num_samples=settings.num_samples, **settings.recorded)
    for number in range(30):
        trial = sweep.add(x=number / 30)
        sweep.start(trial)
        if number == 29 and over:
            sweep.callback.over(WHY)
        sweep.report(trial, 1, last if number == 29 else 0.5 + number / 100)
        if number < 29 or not cut:
            sweep.end_by_itself(trial)
    sweep.callback.record.close()
    reservation = reserve(1)
    write_sweep_file(storage / "s", sweep_file_of(SPACE, settings, reservation, reservation))
    return replace(settings, resume=True)


def reopened(settings: Settings) -> Any:
    with open_saved_sweep(settings) as past:
        return sweeps._prepare(SPACE, settings, past)


def test_the_record_the_results_and_the_notes_say_why(tmp_path: Path) -> None:
    recorded(tmp_path)
    state = read_record(tmp_path / "s")
    assert state.over == WHY
    assert (None, WHY) in state.notes
    assert WHY in SweepResults.load(tmp_path / "s").summary()


def test_resumed_without_a_change_it_makes_no_further_trial(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = recorded(tmp_path, last=-9.0)  # a trial that went on found better: that changes nothing
    assert reopened(settings).start.over == WHY
    monkeypatch.setattr(logging.getLogger("tunelight"), "propagate", True)
    results = tl.run(SPACE, train, metric="loss", name="s", storage=tmp_path, scheduler="fifo", num_samples=50,
                     stop_when="no_better:0.1", resume=True, progress=False)  # fmt: skip
    assert len(results) == 30
    assert f"{WHY}. To go on all the same: stop_when=None." in caplog.text
    assert not ray.is_initialized()


def test_trials_that_were_cut_off_go_on(tmp_path: Path) -> None:
    sweep = reopened(recorded(tmp_path, cut=True))
    assert sweep.to_do
    assert sweep.start.over == WHY
    assert [trial.trial_id for trial in sweep.start.resumed] == ["00029"]


def test_without_the_rule_it_goes_on(tmp_path: Path) -> None:
    sweep = reopened(replace(recorded(tmp_path), stop_when=None))
    assert sweep.to_do
    assert sweep.start.over is None
    assert sweep.start.past == ()


def test_new_baselines_are_tried_all_the_same(tmp_path: Path) -> None:
    sweep = reopened(replace(recorded(tmp_path), baselines=({"x": 0.25},)))
    assert sweep.to_do
    assert sweep.start.over == WHY
    assert sweep.baselines == [{"x": 0.25}]


@pytest.mark.parametrize(("margin", "goes_on"), [(0.5, False), (0.0, True)])
def test_another_margin_is_judged_anew(tmp_path: Path, margin: float, goes_on: bool) -> None:
    settings = replace(recorded(tmp_path), stop_when=f"no_better:{margin}", num_samples=1000)
    sweep = reopened(settings)
    assert sweep.to_do == goes_on
    assert (sweep.start.over is None) == goes_on
    assert goes_on or "after 30 trials, the chance that 30 more" in sweep.start.over


@pytest.mark.parametrize(("before", "ends"), [({"stop_when": None}, True), ({"num_samples": 40}, True), ({}, False)])
def test_a_rule_or_a_number_of_trials_that_is_new_is_judged_at_once(
    tmp_path: Path, before: dict[str, Any], ends: bool
) -> None:
    settings = replace(recorded(tmp_path, over=False, **before), stop_when="no_better:0.1", num_samples=50)
    assert (reopened(settings).start.over is not None) == ends


def test_a_trial_that_was_made_before_and_is_recorded_after_changes_nothing(tmp_path: Path) -> None:
    """Tune makes trials within a step; their lines are written when the recorder is called next."""
    sweep = Sweep(tmp_path, num_samples=50)
    sweep.start(sweep.add(x=0.1))
    late = sweep.add(x=0.2)
    sweep.callback.over(WHY)
    sweep.start(late)
    assert sweep.state.over == WHY
    assert sweep.state.expected(50) == 2
    assert read_record(tmp_path).over == WHY


@pytest.mark.parametrize(("over", "notes"), [(None, 1), (WHY, 1), ("stop_when: another rule", 2)])
def test_each_run_records_whether_the_search_is_over(tmp_path: Path, over: str | None, notes: int) -> None:
    sweep = Sweep(tmp_path)
    sweep.callback.over(WHY)
    sweep.callback.close()
    again = Sweep(tmp_path, over=over)
    assert again.state.over == read_record(tmp_path).over == over
    assert len(again.state.notes) == notes
    assert "over" not in again.state.sweep


def test_a_driver_that_died_after_the_last_trial_leaves_the_reason(tmp_path: Path) -> None:
    settings = recorded(tmp_path)
    with open_saved_sweep(settings) as past:
        assert past is not None
        past.settle(None)
    state = read_record(tmp_path / "s")
    assert (state.over, state.ended) == (WHY, "finished")


def test_a_rule_that_was_put_aside_is_so_after_a_crash_between_the_settings_and_the_record(tmp_path: Path) -> None:
    settings = recorded(tmp_path)
    sweep_file = read_sweep_file(tmp_path / "s")
    write_sweep_file(tmp_path / "s", {**sweep_file, "stop_when": None})
    sweep = reopened(replace(settings, stop_when=None, repeats=Repeats(2)))
    assert read_record(tmp_path / "s").over == WHY
    assert sweep.start.over is None


def test_more_trials_are_judged_anew_also_after_a_crash_between_the_settings_and_the_record(tmp_path: Path) -> None:
    settings = recorded(tmp_path, last=-9.0)
    write_sweep_file(tmp_path / "s", {**read_sweep_file(tmp_path / "s"), "num_samples": 500})
    assert reopened(replace(settings, num_samples=500)).start.over is None


@pytest.mark.parametrize(
    ("space", "more"),
    [
        ({"x": tl.grid_search([1, 2])}, {}),
        ({"x": tl.choice([1, 2])}, {"searcher": "grid"}),
        ({"x": tl.choice([1, 2])}, {"searcher": {"name": "grid"}}),
    ],
)
def test_a_grid_is_refused(space: dict[str, Any], more: dict[str, Any]) -> None:
    settings = Settings(train=train, metric="loss", stop_when="no_better:0.1", **more)
    with pytest.raises(SettingsError, match="those of a grid come in order"):
        check_settings(SearchSpace(space), settings)
