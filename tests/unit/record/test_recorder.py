"""What Tune's callbacks become in the record and in the live view, with reasons, changes, and when the disk is full."""

from __future__ import annotations

import errno
import json
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

import tunelight as tl
from tests.kit.recording import Clock, Sweep, lines
from tunelight import record as storage
from tunelight.checkpoints import files as checkpoints
from tunelight.errors import StorageError
from tunelight.record import Record, RecordCallback, read_lines, read_record
from tunelight.results import SweepResults
from tunelight.schedulers import GangPBT
from tunelight.schedulers.base import GangScheduler, SweepFacts, adapted
from tunelight.sweep.replay import replay_scheduler

# What Tune's callbacks become


def test_reader_replays_what_the_writer_holds(sweep):
    first, second = sweep.add(lr=np.float32(0.5), n=np.int64(3)), sweep.add(path=Path("x"))
    sweep.step()
    for trial in (first, second):
        sweep.start(trial)
    sweep.report(first, 1, np.float32(0.25), own={"notes": ["mind this"]})
    sweep.report(second, 1, 0.5, done=True)
    sweep.complete(second)
    sweep.end_by_itself(first)
    sweep.end()
    assert read_record(sweep.folder) == sweep.state


def test_trial_is_recorded_with_its_first_config_seed_and_relative_folder(sweep):
    added = sweep.add(lr=0.1)
    sweep.step()
    added.config["lr"] = 9
    trial = sweep.state.trials["00000"]
    assert (trial.index, trial.config, trial.seed, trial.folder) == (0, {"lr": 0.1}, 7, "trial_00000")
    assert trial.state == "PENDING"
    sweep.start(added)
    sweep.report(added, 1, 0.5, acc=0.9)
    assert trial.history == [{"loss": 0.5, "acc": 0.9, "epoch": 0, "training_iteration": 1, "timestamp": 5.0}]


def test_a_trial_is_finished_by_itself_and_stopped_by_its_scheduler_where_it_trains_pauses_or_reports_again(sweep):
    itself, training, paused, again = (sweep.run(0.5) for _ in range(4))
    sweep.end_by_itself(itself)
    sweep.report(training, 2, 0.5, done=True)
    sweep.report(again, 1, 0.5, done=True)
    sweep.pause(paused)
    for trial in (training, paused, again):
        sweep.complete(trial)
    assert sweep.states() == ["FINISHED", "STOPPED", "STOPPED", "STOPPED"]
    assert sweep.state.trials["00001"].decision == "STOP"


def test_resumed_trial_with_nothing_left_to_do_adds_no_report(sweep):
    trial = sweep.run(0.5)
    result = {"done": True, "training_iteration": 1, "_tunelight": {"error": None}, "time_total_s": 1.0}
    sweep.callback.on_trial_result(iteration=1, trials=sweep.trials, trial=trial, result=result)
    trial.last_result = result
    sweep.complete(trial)
    assert sweep.states() == ["FINISHED"]
    assert len(sweep.state.trials["00000"].history) == 1


def test_failure_that_tune_sees_is_an_error_once(sweep):
    trial = sweep.run()
    trial.get_error = lambda: "Failure # 1\nRayActorError: The actor died\n"
    for _ in range(2):
        sweep.call("on_trial_error", trial=trial)
    error = sweep.state.trials["00000"].error
    assert error["message"] == "RayActorError: The actor died"
    assert sweep.state.counts["ERROR"] == 1


def test_failure_is_told_by_its_own_error_where_the_storage_has_that_of_an_earlier_one(sweep, tmp_path):
    trial = sweep.run()
    trial.get_error = lambda: "Failure # 1\nRayActorError: leaves its workers\n"
    trial.error_file = str(tmp_path / "error.txt")
    (tmp_path / "error.txt").write_text("Failure # 1\nRayActorError: leaves its workers\nFailure # 2\nOSError: no\n")
    sweep.call("on_trial_error", trial=trial)
    assert sweep.state.trials["00000"].error["message"] == "OSError: no"


def test_new_trial_is_recorded_though_tune_moves_another_behind_it(sweep):
    first, second = sweep.add(lr=0.1), sweep.add(lr=0.2)
    sweep.start(first)
    new = sweep.add(lr=0.5)
    sweep.trials.remove(first)
    sweep.trials.append(first)  # as Tune does where a trial's head died
    sweep.call("on_trial_recover", trial=first)
    sweep.start(new)
    sweep.start(first)
    assert sweep.state.trials[new.trial_id].config == {"lr": 0.5}
    assert list(sweep.state.trials) == [first.trial_id, second.trial_id, new.trial_id]


def test_error_text_that_cannot_be_read_does_not_raise(sweep):
    trial = sweep.run()
    trial.get_error = lambda: 1 / 0
    sweep.call("on_trial_error", trial=trial)
    assert "division by zero" in sweep.state.trials["00000"].error["message"]


def test_recovered_trial_waits_then_runs_again_without_error(sweep):
    trial = sweep.run()
    sweep.call("on_trial_recover", trial=trial)
    assert sweep.states() == ["PENDING"]
    assert checkpoints.read_acked(sweep.folder / sweep.state.trials["00000"].folder) == 0  # no report was heard of
    sweep.start(trial)
    assert sweep.states() == ["RUNNING"]
    assert "will be started again" in sweep.state.notes[0][1]
    sweep.report(trial, 1, 0.5)
    sweep.call("on_trial_recover", trial=trial)
    assert checkpoints.read_acked(sweep.folder / sweep.state.trials["00000"].folder) == 1


def test_pause_is_seen_at_the_end_of_the_step_and_left_out_of_the_seconds(sweep):
    trial = sweep.run()
    sweep.clock.now += 2
    sweep.pause(trial)
    assert sweep.states() == ["PAUSED"]
    sweep.clock.now += 100
    sweep.start(trial)
    sweep.clock.now += 3
    sweep.complete(trial)
    assert sweep.state.trials["00000"].seconds == 5


def test_what_is_unfinished_at_the_end_was_interrupted(sweep):
    running, waiting, stopped = sweep.add(), sweep.add(), sweep.add()
    for trial in (running, stopped):
        sweep.start(trial)
    sweep.report(stopped, 1, 0.5, done=True)
    running.status = waiting.status = "TERMINATED"  # a time budget: Tune says nothing more
    sweep.end()
    assert sweep.states() == ["INTERRUPTED", "INTERRUPTED", "STOPPED"]
    assert read_record(sweep.folder).ended == "interrupted"


@pytest.mark.parametrize(("budget_s", "ended"), [(50.0, "time budget"), (None, "interrupted"), (500.0, "interrupted")])
def test_an_end_by_time_budget_is_told_from_an_interruption(tmp_path, budget_s, ended):
    sweep = Sweep(tmp_path, budget_s=budget_s)
    sweep.run(lr=0.1)
    sweep.clock.now += 100
    sweep.end()
    assert read_record(tmp_path).ended == ended


def test_a_sweep_that_ends_between_two_trials_has_not_finished(tmp_path):
    sweep = Sweep(tmp_path, complete=lambda: False)
    trial = sweep.run(0.5)
    sweep.end_by_itself(trial)
    sweep.end()
    assert sweep.state.ended == "interrupted"


def test_the_reason_of_the_end_is_recorded_once(sweep):
    sweep.end()
    sweep.callback.close("something else")
    assert read_record(sweep.folder).ended == "finished"
    assert sum(b'"kind":"end"' in line for line in lines(sweep.folder)) == 1


def test_checkpoints_are_relative_inside_the_sweep_and_recorded_once(sweep):
    trial = sweep.run()
    inside = {"path": str(sweep.folder / "trial_00000/checkpoints/report-000001.ckpt"), "number": 1}
    for number in (1, 2):
        sweep.report(trial, number, 0.5, own={"checkpoints": [{**inside, "value": 0.5, "epoch": 0}]})
    sweep.report(trial, 3, 0.5, own={"checkpoints": [{"path": "/elsewhere/x.ckpt", "number": 3}]})
    found = sweep.state.trials["00000"].checkpoints
    assert [known["path"] for known in found] == ["trial_00000/checkpoints/report-000001.ckpt"]
    assert found[0]["training_iteration"] == 1


def test_diverged_and_oom_are_states_of_their_own_and_the_last_report_is_kept(sweep):
    first, second = sweep.add(), sweep.add()
    for trial in (first, second):
        sweep.start(trial)
    sweep.report(first, 1, 0.5)
    astray = {"rank": -1, "type_name": "FloatingPointError", "message": "loss is nan", "state": "DIVERGED"}
    sweep.report(first, 2, math.nan, done=True, own={"error": astray})
    sweep.complete(first)
    sweep.fail(second, type_name="MemoryError", state="OOM")
    assert sweep.states() == ["DIVERGED", "OOM"]
    found = read_record(sweep.folder)
    assert len(found.trials["00000"].history) == 2
    assert found.trials["00001"].history == []
    assert found.best is None  # it is chosen among trials that did not fail
    assert found.best_failed is not None
    assert found.best_failed.value == 0.5


# The live view


@pytest.mark.parametrize(("value", "found"), [(None, None), ("text", None), (True, None), (math.nan, None), (2, 2.0)])
def test_a_metric_is_a_number_by_its_path(value, found):
    assert storage.metric_value({"val": {"loss": value}}, "val/loss") == found
    assert storage.metric_value({"loss": value}, "loss") == found


# When the disk does not take it


def test_failing_writes_are_said_once_and_go_on_later_where_they_broke_off(sweep, monkeypatch, caplog):
    trial = sweep.run()
    write, budget = os.write, [70]

    def nearly_full(file, data):
        if not budget[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(file, data[: budget[0]])
        budget[0] -= done
        return done

    monkeypatch.setattr(os, "write", nearly_full)
    sweep.report(trial, 1, 0.5)
    sweep.report(trial, 2, 0.4)
    assert len([entry for entry in caplog.records if "No space left" in entry.message]) == 1
    assert sweep.state.best.value == 0.4
    assert read_record(sweep.folder).trials["00000"].history == []
    budget[0] = 10**9
    sweep.report(trial, 3, 0.3)
    assert read_record(sweep.folder) == sweep.state


def test_lines_that_never_could_be_written_are_said_at_close(tmp_path, monkeypatch, caplog):
    record = Record.open(tmp_path)
    monkeypatch.setattr("tunelight.record.remote.END_S", 0.0)
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "bad")))
    record.append("note", text="lost")
    record.close()
    assert "lacks its last" in caplog.text


def test_record_that_cannot_be_opened_is_a_storage_error(tmp_path):
    (tmp_path / "record.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"record\.jsonl"):
        RecordCallback(tmp_path, metric="loss")


def test_report_that_a_trial_makes_again_is_recorded_once(sweep):
    trial = sweep.run()
    for number in (1, 2, 2, 1, 3):
        sweep.report(trial, number, float(number))
    history = sweep.state.trials["00000"].history
    assert [report["training_iteration"] for report in history] == [1, 2, 3]


def test_seconds_between_two_drivers_are_nobodys(sweep):
    trial = sweep.run()
    sweep.clock.now += 5
    sweep.report(trial, 1, 1.0)
    sweep.callback.record.close()  # the driver dies
    clock = Clock()
    clock.now = sweep.clock.now + 1000
    again = RecordCallback(sweep.folder, again={"00000": False}, clock=clock, metric="loss", mode="min")
    assert (again.state.trials["00000"].state, again.state.trials["00000"].seconds) == ("PENDING", 5)
    again.close()


def test_a_trial_that_was_paused_waits_on_under_the_next_driver(sweep):
    sweep.run(1.0)
    sweep.callback.record.close()  # the driver dies before it says that it paused the trial
    again = RecordCallback(sweep.folder, again={"00000": True}, metric="loss", mode="min")
    assert again.state.trials["00000"].state == "PAUSED"
    again.close()
    assert again.state.trials["00000"].state == "INTERRUPTED"


# When a trial begins to train


def test_a_trial_is_starting_until_its_head_announces_that_its_workers_have_met(tmp_path):
    told: list[str] = []

    def announced():
        taken = told.copy()
        told.clear()
        return taken

    sweep = Sweep(tmp_path, announced=announced)
    first, second = sweep.add(), sweep.add()
    sweep.start(first)
    sweep.start(second)
    assert [trial.starting for trial in sweep.state.trials.values()] == [True, True]
    told += ["00000/0", "nobody/0"]
    sweep.step()
    assert [trial.starting for trial in sweep.state.trials.values()] == [False, True]
    sweep.report(second, 1, 0.5)  # a report says it as well
    assert not sweep.state.trials["00001"].starting
    sweep.pause(first)
    assert not sweep.state.trials["00000"].starting  # it is paused
    replayed = read_record(tmp_path)
    assert [trial.training for trial in replayed.trials.values()] == [False, True]
    sweep.callback.close()


def test_an_announcement_of_an_earlier_start_is_not_taken_for_a_later_one(tmp_path):
    sweep = Sweep(tmp_path, announced=lambda: ["00000/0"])
    trial = sweep.run(0.5)
    sweep.pause(trial)
    sweep.start(trial)
    sweep.clock.now += 10
    sweep.step()
    assert sweep.state.trials["00000"].starting
    sweep.callback.close()


# --- why a trial was stopped or paused, in the record -----------------------------------------------------


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
def judged(tmp_path: Path, scheduler: Told) -> Any:
    made = Sweep(tmp_path, scheduler=scheduler)
    yield made
    made.callback.close()


def written(judged: Sweep, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, lines(judged.folder)) if line["kind"] == kind]


@pytest.mark.parametrize("end", [PLACE, None], ids=["of its end", "of its pause"])
def test_a_trial_that_is_ended_while_it_is_paused_has_the_last_reason(
    judged: Sweep, scheduler: Told, end: str | None
) -> None:
    trial = judged.run(0.5)
    pause = "place 2 of 2 at rung 1; the best goes on"
    scheduler.reasons["00000"] = pause
    judged.pause(trial)
    scheduler.reasons = {} if end is None else {"00000": end}
    judged.complete(trial)
    read = read_record(judged.folder).trials["00000"]
    assert (read.state, read.why) == ("STOPPED", end or pause)


def test_a_stop_is_recorded_with_the_scheduler_s_reason(judged: Sweep, scheduler: Told) -> None:
    trial = judged.run(0.5)
    scheduler.reasons["00000"] = PLACE
    judged.report(trial, 2, 0.5, done=True)
    judged.complete(trial)
    assert [line.get("why") for line in written(judged, "report")] == [None, PLACE]
    assert "why" not in written(judged, "report")[0]
    read = read_record(judged.folder).trials["00000"]
    assert (read.state, read.why) == ("STOPPED", PLACE)
    assert SweepResults.load(judged.folder).trial("00000").stop_reason == PLACE


def test_a_pause_is_recorded_with_its_reason_until_the_trial_goes_on(judged: Sweep, scheduler: Told) -> None:
    trial = judged.run(0.5)
    scheduler.reasons["00000"] = PLACE
    judged.pause(trial)
    assert read_record(judged.folder).trials["00000"].why == PLACE
    scheduler.reasons.clear()
    judged.start(trial)
    assert read_record(judged.folder).trials["00000"].why is None
    assert [line.get("why") for line in written(judged, "state")] == [None, PLACE, None]


def test_a_stop_at_a_report_made_again_has_its_place_a_failure_no_reason_and_a_person_s_stop_its_own(
    judged: Sweep, scheduler: Told
) -> None:
    again, failed, commanded = judged.run(0.5), judged.run(), judged.run()
    scheduler.reasons = {"00000": PLACE, "00001": PLACE}
    judged.report(again, 1, 0.5, done=True)
    error = {"type_name": "Divergence", "message": "loss is nan", "state": "DIVERGED"}
    judged.report(failed, 1, 0.5, done=True, own={"error": error})
    judged.callback.stop(commanded.trial_id)
    read = read_record(judged.folder).trials
    assert [trial.why for trial in read.values()] == [PLACE, None, "by command"]
    assert read["00001"].state == "DIVERGED"


@pytest.mark.parametrize("plain", [None, adapted(FIFOScheduler())])
def test_a_scheduler_that_gives_no_reasons_leaves_none(tmp_path: Path, plain: Any) -> None:
    judged = Sweep(tmp_path, scheduler=plain)
    trial = judged.run()
    judged.report(trial, 1, 0.5, done=True)
    judged.complete(trial)
    judged.end()
    assert b'"why"' not in (tmp_path / "record.jsonl").read_bytes()
    assert SweepResults.load(tmp_path).trial("00000").stop_reason is None


# --- what a population's changes leave: whose configuration held when, and the same scheduler again -----


LR = {"lr": tune.loguniform(1e-4, 1.0)}


def test_the_best_configuration_is_the_one_that_the_best_report_was_trained_under(sweep: Sweep, tmp_path: Path) -> None:
    first, second = sweep.add(lr=0.1), sweep.add(lr=0.9)
    for trial in (first, second):
        sweep.start(trial)
    sweep.report(first, 1, 0.5)
    sweep.report(second, 1, 0.9)
    sweep.callback.change("00001", 1, {"lr": 0.12}, "00000", 1)
    sweep.report(second, 2, 0.2)
    sweep.callback.change("00001", 2, {"lr": 0.14}, "00000", 2)
    sweep.report(second, 3, 0.3)
    sweep.end()
    results = tl.SweepResults.load(tmp_path)
    assert results.best.id == "00001"
    assert results.best_config == {"lr": 0.12}
    assert [change["before"] for change in results.best.changes] == [{"lr": 0.9}, {"lr": 0.12}]
    assert results.trials[0].changes == []
    text = results.export_best(tmp_path / "best.yaml").read_text()
    assert "lr: 0.12" in text.split("metric:")[0]
    assert "parent: " in text
    state = read_record(tmp_path).trials["00001"]
    assert [state.config_at(number)["lr"] for number in (1, 2, 3)] == [0.9, 0.12, 0.14]
    assert state.config == {"lr": 0.14}


def test_a_change_that_could_not_be_made_is_as_if_it_had_not_been(sweep: Sweep, tmp_path: Path) -> None:
    trial = sweep.run(0.5, lr=0.1)
    sweep.callback.change("00000", 1, {"lr": 0.12}, "00001", 1)
    sweep.callback.change("00000", 1, {"lr": 0.1}, None, None)
    sweep.report(trial, 2, 0.2)
    sweep.end()
    result = tl.SweepResults.load(tmp_path).trials[0]
    assert (result.config, result.changes) == ({"lr": 0.1}, [])


def pbt() -> GangPBT:
    return GangPBT("loss", "min", perturbation_interval=2, hyperparam_mutations=LR, seed=4)


def decisions(scheduler: GangPBT, trials: dict[str, Any], seed: int) -> list[Any]:
    """Go on with random reports, and return what changes."""
    changes: list[Any] = []
    scheduler.prepare(SweepFacts(on_change=lambda *change: changes.append(change)))
    rng = random.Random(seed)
    at = dict.fromkeys(trials, 30)
    for _ in range(60):
        key = rng.choice(list(trials))
        at[key] += 1
        scheduler.on_trial_result(_nobody(), trials[key], {"loss": rng.random(), "training_iteration": at[key]})
    return changes


def _nobody() -> Any:
    return SimpleNamespace(get_live_trials=list)


def test_a_replayed_population_decides_as_the_live_one_would_have(tmp_path: Path) -> None:
    sweep, live = Sweep(tmp_path), pbt()
    live.prepare(SweepFacts(on_change=sweep.callback.change))
    trials: dict[str, Any] = {}
    for index in range(4):
        one = sweep.run(lr=0.1 * (index + 1))
        trials[one.trial_id] = Trial("live", stub=True, trial_id=one.trial_id, config=dict(one.config))
        live.on_trial_add(_nobody(), trials[one.trial_id])
    rng = random.Random(1)
    for number in range(1, 31):
        for one in sweep.trials:
            loss = rng.random()
            own = {"_tunelight/adopted": rng.choice(["none", "memory", "disk"])}  # heard where it was to adopt
            live.on_trial_result(_nobody(), trials[one.trial_id], {"loss": loss, "training_iteration": number, **own})
            sweep.report(one, number, loss)
    sweep.callback.record.close()
    assert live.num_exploits > 2
    again = pbt()
    lines = read_lines(tmp_path)
    replay_scheduler(lines, again)
    assert any(line["kind"] == "config" and line["parent"] is None for line in lines)
    assert again.num_exploits == live.num_exploits
    assert {key: trial.config for key, trial in again._trials.items()} == {key: t.config for key, t in trials.items()}
    assert decisions(again, dict(again._trials), 9) == decisions(live, trials, 9)
