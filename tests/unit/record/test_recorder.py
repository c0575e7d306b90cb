"""What Tune's callbacks become in the record and in the live view, with reasons, changes, and when the disk is full."""

from __future__ import annotations

import errno
import math
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.experiment import Trial

import tunelight as tl
from tests.kit.recording import Clock, Sweep, lines, read_lines, replay_scheduler
from tunelight import record as storage
from tunelight.record import RecordCallback, read_record, view
from tunelight.record.lines import sealed
from tunelight.results import SweepResults
from tunelight.schedulers import GangPBT
from tunelight.schedulers.base import GangScheduler, SweepFacts


def test_reader_replays_what_the_writer_holds(sweep):
    first, second = sweep.add(lr=np.float32(0.5), n=np.int64(3)), sweep.add(path=Path("x"))
    sweep.step()
    known = sweep.state.trials["00000"]
    assert (known.index, known.seed, known.folder, known.state) == (0, 7, "trial_00000", "PENDING")
    first.config["n"] = 9  # what was recorded stays
    for trial in (first, second):
        sweep.start(trial)
    sweep.report(first, 1, np.float32(0.25), own={"notes": ["mind this"]})
    sweep.report(second, 1, 0.5, done=True)
    sweep.complete(second)
    sweep.end_by_itself(first)
    sweep.end()
    assert read_record(sweep.folder) == sweep.state
    assert known.config == {"lr": 0.5, "n": 3}
    assert known.history == [{"loss": 0.25, "epoch": 0, "training_iteration": 1, "timestamp": 5.0}]


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


def test_failure_that_tune_sees_is_told_once_by_its_own_error_or_as_one_that_cannot_be_read(sweep, tmp_path):
    seen, in_file, unread = sweep.run(), sweep.run(), sweep.run()
    seen.get_error = lambda: "Failure # 1\nRayActorError: The actor died\n"
    in_file.get_error = lambda: "Failure # 1\nRayActorError: leaves its workers\n"  # the storage has an earlier one's
    in_file.error_file = str(tmp_path / "error.txt")
    (tmp_path / "error.txt").write_text("Failure # 1\nRayActorError: leaves its workers\nFailure # 2\nOSError: no\n")
    unread.get_error = lambda: 1 / 0
    for trial in (seen, seen, in_file, unread):
        sweep.call("on_trial_error", trial=trial)
    errors = [trial.error["message"] for trial in sweep.state.trials.values()]
    assert errors[:2] == ["RayActorError: The actor died", "OSError: no"]
    assert "division by zero" in errors[2]
    assert sweep.state.counts["ERROR"] == 3


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


def test_recovered_trial_waits_then_runs_again_without_error(sweep):
    trial = sweep.run()
    sweep.call("on_trial_recover", trial=trial)
    assert sweep.states() == ["PENDING"]
    sweep.start(trial)
    assert sweep.states() == ["RUNNING"]
    assert "will be started again" in sweep.state.notes[0][1]


def test_what_is_unfinished_at_the_end_was_interrupted(sweep):
    running, waiting, stopped = sweep.run(), sweep.add(), sweep.run()
    sweep.report(stopped, 1, 0.5, done=True)
    running.status = waiting.status = "TERMINATED"  # a time budget: Tune says nothing more
    sweep.end()
    assert sweep.states() == ["INTERRUPTED", "INTERRUPTED", "STOPPED"]
    assert read_record(sweep.folder).ended == "interrupted"


@pytest.mark.parametrize(
    ("settings", "ended"),
    [
        ({"budget_s": 50.0}, "time budget"),
        ({"budget_s": 500.0}, "interrupted"),
        ({"complete": lambda: False}, "interrupted"),  # it ends between two trials
    ],
)
def test_the_reason_of_an_end_is_recorded_once(tmp_path, settings, ended):
    sweep = Sweep(tmp_path, **settings)
    trial = sweep.run(0.5, lr=0.1)
    sweep.clock.now += 100
    if "complete" in settings:
        sweep.end_by_itself(trial)
    sweep.end()
    sweep.callback.close("something else")
    assert read_record(tmp_path).ended == ended
    assert sum(b'"kind":"end"' in line for line in lines(tmp_path)) == 1


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
    first, second = sweep.run(0.5), sweep.run()
    astray = {"rank": -1, "type_name": "FloatingPointError", "message": "loss is nan", "state": "DIVERGED"}
    sweep.report(first, 2, math.nan, done=True, own={"error": astray})
    sweep.complete(first)
    sweep.fail(second, type_name="MemoryError", state="OOM")
    assert sweep.states() == ["DIVERGED", "OOM"]
    found = read_record(sweep.folder)
    assert len(found.trials["00000"].history) == 2
    assert found.trials["00001"].history == []
    assert found.best is None  # it is chosen among trials that did not fail
    assert getattr(found.best_failed, "value", None) == 0.5


@pytest.mark.parametrize(("value", "found"), [(None, None), ("text", None), (True, None), (math.nan, None), (2, 2.0)])
def test_a_metric_is_a_number_by_its_path(value, found):
    assert storage.metric_value({"val": {"loss": value}}, "val/loss") == found
    assert storage.metric_value({"loss": value}, "loss") == found


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
    assert [report["loss"] for report in sweep.state.trials["00000"].history] == [0.5, 0.4]
    budget[0] = 10**9
    sweep.report(trial, 3, 0.3)
    assert read_record(sweep.folder) == sweep.state
    monkeypatch.setattr("tunelight.record.remote.END_S", 0.0)
    budget[0] = 0
    sweep.callback.note("lost")
    sweep.callback.close()
    assert "lacks its last" in caplog.text


def test_a_driver_keeps_of_each_trial_its_last_report_and_of_one_that_has_ended_its_line(sweep, monkeypatch):
    monkeypatch.setattr("tunelight.record.recorder._MOST_UNFOLDED", 1)
    first, other = sweep.run(*(1 / n for n in range(1, 9)), lr=0.1), sweep.run(1.0, lr=0.2)
    state, before = sweep.state.trials["00000"], read_record(sweep.folder)
    assert len(state.history._read) == 1
    with sweep.callback.record.path.open("ab") as stream:  # as another driver's last line
        stream.write(sealed(b'{"kind":"note","time":1.0,"trial":null,"text":"late"}'))
    sweep.report(other, 2, 0.5)
    assert not sweep.callback.record._alone
    assert [report["loss"] for report in sweep.state.trials["00001"].history] == [1.0, 0.5]
    sweep.end_by_itself(first)
    assert state.folded is None
    sweep.callback.on_step_end(1, [])
    assert state.folded is not None
    assert (state.state, state.value) == ("FINISHED", 0.125)
    assert state.folded is not None
    assert state.history == before.trials["00000"].history
    assert state.config == {"lr": 0.1}
    assert pickle.loads(pickle.dumps(state)) == state == read_record(sweep.folder).trials["00000"]


def test_trials_of_an_earlier_run_have_come_to_the_rungs_of_the_last(tmp_path):
    sweep = Sweep(tmp_path)
    sweep.end_by_itself(sweep.run(1.0, 0.5, lr=0.1))
    sweep.end()
    again = Sweep(tmp_path, rungs={"by": "training_iteration", "at": [2, 4]})
    assert [rung["reached"] for rung in view.rungs(again.state)] == [1, 0]


def test_seconds_of_a_pause_and_those_between_two_drivers_are_nobodys_and_what_waited_waits_on(sweep):
    trial, other = sweep.run(), sweep.run(1.0)
    sweep.clock.now += 2
    sweep.pause(trial)
    assert sweep.states() == ["PAUSED", "RUNNING"]
    sweep.clock.now += 100
    sweep.start(trial)
    sweep.clock.now += 3
    sweep.report(trial, 1, 1.0)
    sweep.callback.record.close()  # the driver dies before it says that it paused the other one
    clock = Clock(sweep.clock.now + 1000)
    waits = {trial.trial_id: False, other.trial_id: True}
    again = RecordCallback(sweep.folder, again=waits, clock=clock, metric="loss", mode="min")
    assert [one.state for one in again.state.trials.values()] == ["PENDING", "PAUSED"]
    assert again.state.trials["00000"].seconds == 5
    again.close()
    assert [one.state for one in again.state.trials.values()] == ["INTERRUPTED"] * 2


def test_a_trial_is_starting_until_its_head_announces_that_its_workers_have_met(tmp_path):
    told: list[tuple[str, int]] = []
    sweep = Sweep(tmp_path, announced=lambda: [told.pop() for _ in list(told)])
    first, second = sweep.run(), sweep.run()
    assert [trial.starting for trial in sweep.state.trials.values()] == [True, True]
    told += [("00000", 0), ("nobody", 0)]
    sweep.step()
    assert [trial.starting for trial in sweep.state.trials.values()] == [False, True]
    sweep.report(second, 1, 0.5)  # a report says it as well
    assert not sweep.state.trials["00001"].starting
    sweep.pause(first)
    assert not sweep.state.trials["00000"].starting  # it is paused
    replayed = read_record(tmp_path)
    assert [trial.training for trial in replayed.trials.values()] == [False, True]
    sweep.pause(second)
    sweep.start(second)
    sweep.clock.now += 10
    told += [("00001", 0)]  # of its earlier start
    sweep.step()
    assert sweep.state.trials["00001"].starting


PLACE = "place 7 of 12 at rung 4; the best 3 go on"


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Any]:
    """Return a sweep whose scheduler gives the reasons that a test says."""
    scheduler: Any = GangScheduler()
    made: Any = Sweep(tmp_path, scheduler=scheduler)
    made.reasons = dict[str, str]()
    scheduler.reason = made.reasons.get
    yield made
    made.callback.close()


def written(judged: Sweep, kind: str) -> list[Any]:
    return [line.get("why", "") for line in read_lines(judged.folder) if line["kind"] == kind]


def test_a_stop_and_a_pause_are_recorded_with_their_reasons_and_one_that_ends_while_it_is_paused_with_the_last(judged):
    stopped, goes_on, ended, kept = (judged.run(0.5) for _ in range(4))
    judged.reasons.update(dict.fromkeys(("00000", "00001", "00002", "00003"), PLACE))
    judged.report(stopped, 2, 0.5, done=True)
    judged.complete(stopped)
    for trial in (goes_on, ended, kept):
        judged.pause(trial)
    assert [trial.why for trial in read_record(judged.folder).trials.values()] == [PLACE] * 4
    judged.reasons.clear()
    judged.start(goes_on)
    judged.reasons["00002"] = "place 9 of 20"
    judged.complete(ended)
    judged.complete(kept)
    assert written(judged, "report") == ["", "", "", "", PLACE]
    assert written(judged, "state") == [*[""] * 5, PLACE, PLACE, PLACE, "", "place 9 of 20", ""]
    assert [trial.why for trial in read_record(judged.folder).trials.values()] == [PLACE, None, "place 9 of 20", PLACE]
    assert SweepResults.load(judged.folder).trial("00000").stop_reason == PLACE


def test_a_stop_at_a_report_made_again_has_its_place_a_failure_no_reason_and_a_person_s_stop_its_own(judged) -> None:
    again, failed, commanded = judged.run(0.5), judged.run(), judged.run()
    judged.reasons.update({"00000": PLACE, "00001": PLACE})
    judged.report(again, 1, 0.5, done=True)
    error = {"type_name": "Divergence", "message": "loss is nan", "state": "DIVERGED"}
    judged.report(failed, 1, 0.5, done=True, own={"error": error})
    judged.callback.stop(commanded.trial_id)
    read = read_record(judged.folder).trials
    assert [trial.why for trial in read.values()] == [PLACE, None, "by command"]
    assert read["00001"].state == "DIVERGED"


def test_the_best_configuration_is_the_one_that_the_best_report_was_trained_under(sweep: Sweep, tmp_path: Path) -> None:
    _, second = sweep.run(0.5, lr=0.1), sweep.run(0.9, lr=0.9)
    sweep.callback.change("00001", 1, {"lr": 0.12}, "00000", 1)
    sweep.report(second, 2, 0.2)
    sweep.callback.change("00001", 2, {"lr": 0.13}, "00000", 2)
    sweep.callback.change("00001", 2, {"lr": 0.12}, None, None)  # it could not be made
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


def test_a_replayed_population_decides_as_the_live_one_would_have(tmp_path: Path) -> None:
    sweep, lr = Sweep(tmp_path), {"lr": tune.loguniform(1e-4, 1.0)}
    live, again = (GangPBT("loss", "min", perturbation_interval=2, hyperparam_mutations=lr, seed=4) for _ in range(2))
    nobody: Any = SimpleNamespace(get_live_trials=list)
    live.prepare(SweepFacts(on_change=sweep.callback.change))
    trials: dict[str, Any] = {}
    for index in range(4):
        one = sweep.run(lr=0.1 * (index + 1))
        trials[one.trial_id] = Trial("live", stub=True, trial_id=one.trial_id, config=dict(one.config))
        live.on_trial_add(nobody, trials[one.trial_id])
    rng = random.Random(1)
    for number in range(1, 31):
        for one in sweep.trials:
            loss = rng.random()
            own = {"_tunelight/adopted": rng.choice(["none", "memory", "disk"])}  # heard where it was to adopt
            live.on_trial_result(nobody, trials[one.trial_id], {"loss": loss, "training_iteration": number, **own})
            sweep.report(one, number, loss)
    assert live.num_exploits > 2
    lines = read_lines(tmp_path)
    replay_scheduler(lines, again)
    assert any(line["kind"] == "config" and line["parent"] is None for line in lines)
    assert again.num_exploits == live.num_exploits
    assert {key: trial.config for key, trial in again._trials.items()} == {key: t.config for key, t in trials.items()}
    assert again._members == live._members
    assert str(again._rng.get_state()) == str(live._rng.get_state())  # and so the next ones are the same
