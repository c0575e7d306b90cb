"""What the record keeps for those who look: who was trained where, what happened when, where the rungs lie."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.kit.recording import Sweep
from tunelight.record import RecordCallback, read_record
from tunelight.schedulers.base import GangScheduler

GANG = {"gang": "g1", "nodes": ["a#1", "b#2"], "warm": True, "began": 1000.0, "ready": 1001.0}


def test_a_gang_is_recorded_each_time_that_it_is_told(sweep: Sweep) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, own={"gang": GANG})
    sweep.report(trial, 2, 0.5, own={"gang": None})
    sweep.report(trial, 3, 0.5, own={"gang": {**GANG, "nodes": ["a#1"]}})
    read = read_record(sweep.folder)
    assert read.trials["00000"].gangs == [GANG, {**GANG, "nodes": ["a#1"]}]
    assert read == sweep.state


def test_a_trial_that_failed_before_a_report_still_tells_of_its_gang(sweep: Sweep) -> None:
    trial = sweep.add()
    sweep.start(trial)
    result = {"_tunelight": {"error": {"message": "no"}, "gang": GANG}, "done": True, "training_iteration": 0}
    sweep.call("on_trial_result", trial=trial, result=result)
    assert sweep.state.trials["00000"].gangs == [GANG]


def test_moves_notes_and_events_are_told_with_their_time(sweep: Sweep) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.clock.now += 5
    sweep.callback.note("failed on rank 1", "00000")
    sweep.callback.note("of the sweep")
    trial.status = "PAUSED"
    sweep.step()
    known = sweep.state.trials["00000"]
    assert known.moves == [(1000.0, "RUNNING"), (1005.0, "PAUSED")]
    assert known.notes == [(1005.0, "failed on rank 1")]
    assert list(sweep.state.events)[-3:] == [
        (1005.0, "00000", "note", "failed on rank 1"),
        (1005.0, None, "note", "of the sweep"),
        (1005.0, "00000", "state", "PAUSED"),
    ]
    assert read_record(sweep.folder) == sweep.state


def test_a_schedulers_rungs_are_in_the_record(tmp_path: Path) -> None:
    scheduler: Any = SimpleNamespace(milestones=lambda: [1, 4.0], time_attr="samples")
    RecordCallback(tmp_path, scheduler=scheduler, metric="loss", budget_s=60, clock=lambda: 100.0).close()
    told = read_record(tmp_path).sweep
    assert told["rungs"] == {"by": "samples", "at": [1, 4.0]}
    assert told["ends"] == 160.0


def test_a_scheduler_without_rungs_has_none_in_the_record(tmp_path: Path) -> None:
    RecordCallback(tmp_path, scheduler=GangScheduler(), metric="loss").close()
    told = read_record(tmp_path).sweep
    assert "rungs" not in told
    assert told["ends"] is None


def test_tunelights_own_schedulers_say_where_their_rungs_lie(tmp_path: Path) -> None:
    from tunelight.schedulers import ASHA

    RecordCallback(tmp_path, scheduler=ASHA(max_t=20, grace_period=2, reduction_factor=3), metric="loss").close()
    assert read_record(tmp_path).sweep["rungs"] == {"by": "training_iteration", "at": [2, 6, 18]}
