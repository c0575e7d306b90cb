"""OptunaSearcher under Tune's own controller, on simulated gangs: its study says what the record says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import tunelight as tl
from tests.kit.recording import Sweep
from tests.unit.searchers.test_optuna import FLAT, counts, searcher
from tests.world import Costs, run
from tests.world.controller import SimController, StubTrial
from tunelight.record import RecordCallback, read_lines
from tunelight.searchers import OptunaSearcher
from tunelight.sweep.replay import replay_searcher


class Kept(OptunaSearcher):
    """The simulation copies what it is given; a test looks at what it used."""

    def __deepcopy__(self, memo: Any) -> Kept:
        return self


@pytest.mark.parametrize(
    ("scheduler", "failures"),
    [
        ("asha", 0.0),
        ("elastic_asha", 0.0),
        ("elastic_asha", 30.0),
        ("fifo", 30.0),
        ("hyperband", 0.0),
    ],
)
def test_under_tunes_own_controller_ends_are_told_as_they_are_recorded(tmp_path, monkeypatch, scheduler, failures):
    record = RecordCallback(tmp_path, metric="loss", mode="min")
    controller = SimController
    monkeypatch.setattr(
        run,
        "SimController",
        lambda *given, callbacks, **more: controller(*given, callbacks=[record, *callbacks], **more),
    )
    monkeypatch.setattr(StubTrial, "path", None)
    space = {"lr": tl.loguniform(1e-4, 0.1), "hidden": tl.lograndint(4, 250)}
    one = Kept("tpe", space=space, metric="loss", mode="min", seed=2, n_startup_trials=5)
    run.simulate(
        "digits", scheduler, searcher=one, num_samples=24, seed=1, max_failures=1,
        costs=Costs(node_failures=failures), metric="loss", mode="min",
    )  # fmt: skip
    record.close()
    told = {"FINISHED": "COMPLETE", "STOPPED": "PRUNED", "ERROR": "FAIL"}
    expected = [told[trial.state] for trial in record.state.trials.values()]
    assert len(expected) == 24
    assert [trial.state.name for trial in one.study.trials] == expected
    assert ("PRUNED" in expected) is (scheduler != "fifo")
    for trial, seen in zip(record.state.trials.values(), one.study.trials, strict=True):
        reports = {report["training_iteration"]: report["loss"] for report in trial.history}
        assert seen.intermediate_values == {n: loss for n, loss in reports.items() if math.isfinite(loss)}
        assert seen.state.name != "COMPLETE" or seen.value == trial.value


def recorded(folder: Path) -> Sweep:
    """Record a driver that died: one trial was told to stop and one ran on, and the line of another is lost."""
    sweep = Sweep(folder)
    for number in range(3):
        trial = sweep.add(x=0.25 * number, y=0.5)
        sweep.start(trial)
        sweep.report(trial, 1, 1.0 + number, done=number == 0)
    sweep.callback.record.close()
    return sweep


def test_a_trial_that_was_told_to_stop_when_the_driver_died_was_stopped(tmp_path):
    recorded(tmp_path)
    one = searcher("tpe", FLAT)
    start = replay_searcher(read_lines(tmp_path), one, FLAT, foreign=False, again=["00001", "00002"])
    assert counts(one.study) == {"PRUNED": 1, "RUNNING": 2}
    assert one.study.trials[0].intermediate_values == {1: 1.0}
    assert start.known == {"00001", "00002"}


def test_a_lost_line_leaves_the_other_trials_and_suggestions_as_they_were(tmp_path):
    recorded(tmp_path)
    lines = [line for line in read_lines(tmp_path) if line.get("trial") != "00001"]
    one = searcher("tpe", FLAT)
    start = replay_searcher(lines, one, FLAT, foreign=False, again=["00002"])
    assert start.created == 3
    assert [trial.user_attrs["trial"] for trial in one.study.trials] == ["00000", "00002"]
    assert one.suggest("00003") == searcher("tpe", FLAT).suggest("00003")  # chance still: too few have ended


def test_a_sweep_that_goes_on_by_force_in_another_space_keeps_what_fits(tmp_path):
    recorded(tmp_path)
    space = tl.SearchSpace({"x": tl.uniform(0, 0.4), "z": tl.uniform(0, 1)})
    one = searcher("tpe", space)
    replay_searcher(read_lines(tmp_path), one, space, foreign=False, again=["00001", "00002"])
    assert [trial.params for trial in one.study.trials] == [{"x": 0.0}, {"x": 0.25}, {}]
    assert one.study.trials[2].user_attrs["x"] == 0.5
    assert one.suggest("00003").keys() == {"x", "z"}
