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
from tunelight.record import read_record, write_sweep_file
from tunelight.resources import reserve
from tunelight.results import SweepResults
from tunelight.settings import Settings
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
    sweep = Sweep(storage / "s", **settings.recorded)
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


def test_a_further_trial_of_the_search_takes_it_back_and_a_baseline_does_not(tmp_path: Path) -> None:
    baselines: set[str] = set()
    sweep = Sweep(tmp_path, is_baseline=baselines.__contains__)
    sweep.start(sweep.add(x=0.1))
    sweep.callback.over(WHY)
    baselines.add("00001")
    sweep.start(sweep.add(x=0.2))
    assert sweep.state.over == WHY
    sweep.start(sweep.add(x=0.3))
    assert sweep.state.over is None


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
