"""The record as a file, its reader, what it keeps for those who look, repetitions, and commands to the sweep."""

from __future__ import annotations

import enum
import itertools
import json
import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kit.recording import Clock, Sweep, lines
from tunelight import record as storage
from tunelight.errors import StorageError
from tunelight.extras.attach import send
from tunelight.record import (
    OUTCOMES,
    Branch,
    Owner,
    Record,
    RecordCallback,
    TrialState,
    read_record,
    standings,
)
from tunelight.record.lease import COMMANDS_FILE
from tunelight.record.recorder import CommandReader
from tunelight.record.repeated import chosen, plan
from tunelight.schedulers import ASHA
from tunelight.schedulers.base import GangScheduler
from tunelight.settings.values import Repeats


def test_line_is_json_that_ends_with_the_checksum_of_the_rest(tmp_path):
    record = Record.open(tmp_path, Clock())
    record.append("note", text="hello")
    record.close()
    crc = zlib.crc32(b'{"kind":"note","time":1000.0,"text":"hello"}')
    assert lines(tmp_path) == [b'{"kind":"note","time":1000.0,"text":"hello","crc":"%08x"}' % crc]


def test_values_that_json_has_no_word_for_are_recorded(tmp_path):
    class Color(enum.Enum):
        RED = "red"

    class Odd:
        def __repr__(self):
            return "<odd>"

        def tolist(self):
            raise RuntimeError

    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    for value, plain in (
        (np.float32(0.5), 0.5), (np.int64(3), 3), (np.arange(3), [0, 1, 2]), (Path("a/b"), "a/b"), (Color.RED, "red"),
        (dict, "builtins:dict"), ({2, 1}, [1, 2]), ((1, 2), [1, 2]),
    ):  # fmt: skip
        assert storage.to_json_types({"value": value}) == {"value": plain}
    assert storage.to_json_types({np.int64(1): np.int8(2), (1, 2): "pair"}) == {"1": 2, "(1, 2)": "pair"}
    assert storage.to_json_types([Odd(), "x"]) == ["<odd>", "x"]
    assert storage.to_json_types(cycle)["self"]


def test_a_corrupt_last_line_is_dropped_as_torn_and_one_in_the_middle_named(sweep):
    sweep.run()
    path = sweep.folder / "record.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + b"\0" * 19 + b"\n")
    assert read_record(sweep.folder).trials["00000"].state == "PENDING"
    path.write_bytes(whole.replace(b'"index":0', b'"index":9'))
    with pytest.raises(StorageError, match=r"record\.jsonl, line 2: corrupt"):
        read_record(sweep.folder)


def test_an_unknown_kind_of_a_later_version_changes_nothing_and_a_line_that_does_not_fit_is_named(tmp_path):
    record = Record(tmp_path)
    record.append("resize", trial="00000", workers=3)
    assert read_record(tmp_path).trials == {}
    record.append("state", trial="nobody", state="RUNNING")
    record.close()
    with pytest.raises(StorageError, match=r"line 2: it does not fit"):
        read_record(tmp_path)


def test_repair_keeps_whole_lines_and_the_damaged_file(sweep):
    for _ in range(2):
        sweep.run(1.0)
    sweep.callback.close()
    path = sweep.folder / "record.jsonl"
    damaged = path.read_bytes().replace(b'"index":1', b'"index":8')  # all lines of trial 1 hang on this one
    path.write_bytes(damaged)
    assert "of record.jsonl are damaged and left out" in str(storage.repair(sweep.folder))
    assert list(read_record(sweep.folder).trials) == ["00000"]
    assert (sweep.folder / "record.jsonl.bad-1").read_bytes() == damaged
    assert storage.repair(sweep.folder) is None


def test_a_gang_is_recorded_each_time_that_it_is_told_also_by_a_trial_that_failed_before_a_report(sweep: Sweep) -> None:
    gang = {"gang": "g1", "nodes": ["a#1", "b#2"], "warm": True, "began": 1000.0, "ready": 1001.0}
    trial = sweep.run()
    sweep.report(trial, 1, 0.5, own={"gang": gang})
    sweep.report(trial, 2, 0.5, own={"gang": None})
    sweep.report(trial, 3, 0.5, own={"gang": {**gang, "nodes": ["a#1"]}})
    read = read_record(sweep.folder)
    assert read.trials["00000"].gangs == [gang, {**gang, "nodes": ["a#1"]}]
    assert read == sweep.state
    failed = sweep.run()
    result = {"_tunelight": {"error": {"message": "no"}, "gang": gang}, "done": True, "training_iteration": 0}
    sweep.call("on_trial_result", trial=failed, result=result)
    assert sweep.state.trials["00001"].gangs == [gang]


def test_moves_notes_and_events_are_told_with_their_time(sweep: Sweep) -> None:
    trial = sweep.run()
    sweep.clock.now += 5
    sweep.callback.note("failed on rank 1", "00000")
    sweep.callback.note("of the sweep")
    sweep.pause(trial)
    known = sweep.state.trials["00000"]
    assert known.moves == [(1000.0, "RUNNING"), (1005.0, "PAUSED")]
    assert known.notes == [(1005.0, "failed on rank 1")]
    assert list(sweep.state.events)[-3:] == [
        (1005.0, "00000", "note", "failed on rank 1"),
        (1005.0, None, "note", "of the sweep"),
        (1005.0, "00000", "state", "PAUSED"),
    ]
    assert read_record(sweep.folder) == sweep.state


@pytest.mark.parametrize(
    ("scheduler", "rungs"),
    [
        (SimpleNamespace(milestones=lambda: [1, 4.0], time_attr="samples"), {"by": "samples", "at": [1, 4.0]}),
        (ASHA(max_t=20, grace_period=2, reduction_factor=3), {"by": "training_iteration", "at": [2, 6, 18]}),
        (GangScheduler(), None),
    ],
)
def test_a_schedulers_rungs_and_the_end_of_its_budget_are_in_the_record(tmp_path, scheduler, rungs) -> None:
    budget_s = None if rungs is None else 60
    RecordCallback(tmp_path, scheduler=scheduler, metric="loss", budget_s=budget_s, clock=lambda: 100.0).close()
    told = read_record(tmp_path).sweep
    assert told.get("rungs") == rungs
    assert told["ends"] == (None if rungs is None else 160.0)


# --- the table of outcomes: what it says is consistent, and whoever decides how a trial ended decides for a row of it


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_a_row_does_not_contradict_itself(outcome: storage.Outcome) -> None:
    assert outcome.terminal or not (outcome.failed or outcome.raised)
    assert outcome.failed or not outcome.blames_config
    assert outcome.colour.startswith("#")


# --- commands to a sweep that runs: a file that any process appends to, and its driver reads --------------


def test_a_driver_reads_what_is_for_it_once_and_in_order_whatever_clocks_say(tmp_path, monkeypatch) -> None:
    before, me = Owner(1, "old", 7), Owner(2, "node-1", 8)
    send(tmp_path, "stop", driver=before)
    reader = CommandReader(tmp_path, me)
    assert reader.drain() == []
    with monkeypatch.context() as patch:
        patch.setattr("tunelight.extras.attach.time.time", lambda: -600.0)  # the sender's clock is behind
        first, second = send(tmp_path, "stop", "00003", driver=me), send(tmp_path, "set", driver=me, max_concurrent=2)
    found = reader.drain()
    assert [(one.id, one.do, one.trial, one.arguments) for one in found] == [
        (first, "stop", "00003", {}),
        (second, "set", None, {"max_concurrent": 2}),
    ]
    assert reader.drain() == []


def test_a_line_that_is_being_written_is_read_when_it_is_whole_and_what_is_no_command_is_left_out(tmp_path) -> None:
    reader = CommandReader(tmp_path)
    line = json.dumps({"id": "a", "do": "pause", "trial": None, "arguments": {}})
    path = tmp_path / COMMANDS_FILE
    path.write_text(f'not json\n[1]\n{{"do": 3}}\n{line[:9]}')
    assert reader.drain() == []
    path.write_text(f'not json\n[1]\n{{"do": 3}}\n{line}\n')
    assert [one.id for one in reader.drain()] == ["a"]
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="The sweep was told nothing"):
        send(tmp_path, "stop")


def test_answers_are_in_the_record(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, num_samples=4)
    reader = CommandReader(tmp_path)
    more, refused = send(tmp_path, "set", num_samples=9), send(tmp_path, "stop", "7")
    for command in reader.drain():
        ok, total = command.id != refused, 9 if command.id == more else None
        sweep.callback.answer(command, f"{command.do}: at s3://me:secret@b", ok=ok, num_samples=total)
    assert sweep.state.sweep["num_samples"] == 9
    read = read_record(tmp_path)
    assert read.answers == sweep.state.answers
    assert read.answers[refused][0] is False
    assert "secret" not in read.answers[more][1]
    assert [text.partition(":")[0] for _, text in read.notes] == ["set"]
    assert set(read.answers) == {more, refused}


def test_those_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as writers:  # each write opens the file anew, as another process does
        list(writers.map(lambda number: send(tmp_path, "stop", f"{number} {'x' * 500}"), range(200)))
    found = [int(str(command.trial).split()[0]) for command in CommandReader(tmp_path).drain()]
    assert sorted(found) == list(range(200))


# --- which configurations are trained again, and what their trainings say -------------------------------


THREE = Repeats(3, top=3)


def trial(number: int, value: float | None, state: str = "FINISHED", reports: int = 9, **more: Any) -> TrialState:
    history = [{"training_iteration": reports}]
    return TrialState(f"{number:05d}", number, state=state, history=history, value=value, **more)


def again(made: list[TrialState], first: int, value: float | None, state: str = "FINISHED") -> None:
    """Add a repetition of a trial."""
    repetition = 1 + sum(one.repeats == f"{first:05d}" for one in made)
    made.append(trial(len(made), value, state, repeats=f"{first:05d}", repetition=repetition))


@pytest.mark.parametrize(
    ("found", "ids"),
    [
        ([trial(0, 0.3), trial(1, 0.1), trial(2, 0.2), trial(3, 0.4)], [1, 2, 0]),
        ([trial(0, 0.3, reports=2), trial(1, 0.1, "STOPPED", 3), trial(2, 0.2, "STOPPED", 5)], [0, 2, 1]),
        ([trial(0, 0.1, "ERROR"), trial(1, None), trial(2, 0.1, "DIVERGED"), trial(3, 0.1, "INTERRUPTED")], []),
        ([trial(0, 0.1), trial(1, 0.1)], [0, 1]),
        ([trial(0, 0.2), trial(1, 0.1, branch=Branch("00000", "00000", 3))], [0]),
        ([trial(0, 0.2, "RUNNING", decision="STOP"), trial(1, 0.1, "RUNNING")], [0]),
    ],
    ids=[
        "by value",
        "ended by themselves, then most reports",
        "no others",
        "equals in order",
        "no branches",
        "whose end is not recorded",
    ],
)
def test_those_that_came_furthest_are_chosen_by_their_value(found: list[TrialState], ids: list[int]) -> None:
    assert [one.index for one in chosen(found, 3, "min")] == ids


def test_each_configuration_is_trained_a_second_time_before_any_is_a_third_time_and_a_short_one_made_up_for() -> None:
    made = [trial(0, 0.30), trial(1, 0.20, "STOPPED", 3)]
    wanted = [("00000", 1), ("00001", 1), ("00000", 2), ("00001", 2), ("00001", 3)]
    assert plan(made, THREE, "min") == wanted
    for number, value in ((0, 0.30), (1, 0.31), (0, 0.30), (1, 0.31)):
        again(made, number, value)
    assert plan(made, THREE, "min") == wanted[-1:]
    again(made, 1, 0.33)
    assert plan(made, THREE, "min") == []
    first, second = standings(made, THREE, "min")
    assert (first.trial, first.n) == ("00000", 3)
    assert second.trials == ("00003", "00005", "00006")  # the first was stopped early, and does not count
    assert (first.mean, second.mean) == pytest.approx((0.30, 0.95 / 3))


def test_a_repetition_that_failed_is_one_training_less_and_one_that_diverged_is_infinitely_bad() -> None:
    made = [trial(0, 0.10), trial(1, 0.20), trial(2, 0.05)]
    for number, value, state in ((0, 0.5, "ERROR"), (0, 0.12, ""), (1, 0.21, ""), (2, 0.06, "DIVERGED")):
        again(made, number, value, state or "FINISHED")
    best, second, third = standings(made, THREE, "min")
    assert (best.trial, best.values, best.failed) == ("00000", (0.10, 0.12), ("00003",))
    assert second.trial == "00001"
    assert (third.trial, third.mean, third.spread) == ("00002", math.inf, None)


def test_folds_are_compared_as_if_none_were_missing() -> None:
    hard, made = [0.0, 0.3, 0.0], [trial(0, 0.10), trial(1, 0.12)]
    for number, fold in itertools.product((0, 1), (1, 2)):
        failed = number == 1 and fold == 1
        again(made, number, 0.10 + 0.02 * number + hard[fold], "ERROR" if failed else "FINISHED")
    plain = standings(made, Repeats(3), "min")
    folded = standings(made, Repeats(3, folds=True), "min")
    assert plain[0].trial == "00001"  # it missed the hard fold
    assert folded[0].trial == "00000"
    assert folded[1].mean - folded[0].mean == pytest.approx(0.02)
