"""Why a trial was stopped or paused, in the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import FIFOScheduler

from tests.kit.recording import Sweep, lines
from tunelight.record import read_record
from tunelight.results import SweepResults
from tunelight.schedulers.base import GangScheduler, adapted

PLACE = "place 7 of 12 at rung 4; the best 3 go on"


class Told(GangScheduler):
    """A scheduler that gives the reasons that a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def reason(self, trial_id: str) -> str | None:
        return self.reasons.get(trial_id)


@pytest.fixture
def scheduler() -> Told:
    return Told()


@pytest.fixture
def sweep(tmp_path: Path, scheduler: Told) -> Any:
    made = Sweep(tmp_path, scheduler=scheduler)
    yield made
    made.callback.close()


def written(sweep: Sweep, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, lines(sweep.folder)) if line["kind"] == kind]


def test_a_trial_that_is_ended_while_it_is_paused_has_the_reason_of_its_end(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5)
    scheduler.reasons["00000"] = "place 2 of 2 at rung 1; the best goes on"
    trial.status = "PAUSED"
    sweep.step()
    scheduler.reasons["00000"] = PLACE
    sweep.complete(trial)
    read = read_record(sweep.folder).trials["00000"]
    assert (read.state, read.why) == ("STOPPED", PLACE)


def test_a_stop_is_recorded_with_the_scheduler_s_reason(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5)
    scheduler.reasons["00000"] = PLACE
    sweep.report(trial, 2, 0.5, done=True)
    sweep.complete(trial)
    assert [line.get("why") for line in written(sweep, "report")] == [None, PLACE]
    assert "why" not in written(sweep, "report")[0]
    read = read_record(sweep.folder).trials["00000"]
    assert (read.state, read.why) == ("STOPPED", PLACE)
    assert SweepResults.load(sweep.folder).trial("00000").stop_reason == PLACE


def test_a_pause_is_recorded_with_its_reason_until_the_trial_goes_on(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5)
    scheduler.reasons["00000"] = PLACE
    trial.status = "PAUSED"
    sweep.step()
    assert read_record(sweep.folder).trials["00000"].why == PLACE
    scheduler.reasons.clear()
    sweep.start(trial)
    assert read_record(sweep.folder).trials["00000"].why is None
    assert [line.get("why") for line in written(sweep, "state")] == [None, PLACE, None]


def test_a_trial_that_is_ended_while_it_is_paused_keeps_the_reason_of_its_pause(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5)
    scheduler.reasons["00000"] = PLACE
    trial.status = "PAUSED"
    sweep.step()
    scheduler.reasons.clear()
    sweep.complete(trial)
    read = read_record(sweep.folder).trials["00000"]
    assert (read.state, read.why) == ("STOPPED", PLACE)


def test_a_stop_on_a_report_that_was_made_again_has_its_reason(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5)
    scheduler.reasons["00000"] = PLACE
    sweep.report(trial, 1, 0.5, done=True)
    assert read_record(sweep.folder).trials["00000"].why == PLACE


def test_a_trial_that_fails_or_diverges_was_not_stopped_for_its_place(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    scheduler.reasons["00000"] = PLACE
    error = {"type_name": "Divergence", "message": "loss is nan", "state": "DIVERGED"}
    sweep.report(trial, 1, 0.5, done=True, own={"error": error})
    read = read_record(sweep.folder).trials["00000"]
    assert (read.state, read.why) == ("DIVERGED", None)


def test_a_person_s_stop_is_recorded_as_such(sweep: Sweep, scheduler: Told) -> None:
    trial = sweep.add()
    sweep.start(trial)
    sweep.callback.stop(trial.trial_id)
    assert read_record(sweep.folder).trials["00000"].why == "by command"


@pytest.mark.parametrize("plain", [None, adapted(FIFOScheduler())])
def test_a_scheduler_that_gives_no_reasons_leaves_none(tmp_path: Path, plain: Any) -> None:
    sweep = Sweep(tmp_path, scheduler=plain)
    trial = sweep.add()
    sweep.start(trial)
    sweep.report(trial, 1, 0.5, done=True)
    sweep.complete(trial)
    sweep.end()
    assert b'"why"' not in (tmp_path / "record.jsonl").read_bytes()
    assert SweepResults.load(tmp_path).trial("00000").stop_reason is None
