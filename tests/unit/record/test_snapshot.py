"""What readers keep beside a long record: equal to the record, and thrown away where it does not fit."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit import sweeps
from tests.kit.recording import Sweep
from tunelight.errors import StorageError
from tunelight.extras.attach import RecordFollower
from tunelight.record import Branch, SweepState, apply, read_record, record, snapshot
from tunelight.record.lines import sealed
from tunelight.record.remote import StoreMirror
from tunelight.results import SweepResults

RECORDED = Path(__file__).parents[2] / "formats" / "0.3" / "sweep"


@pytest.fixture(autouse=True)
def _any_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_LONG", 0)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """The function that applies lines which are read of records."""
    counted = mock.Mock(wraps=apply)
    monkeypatch.setattr(record, "apply", counted)
    return counted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep's folder with a snapshot of its whole record."""
    sweeps.record(tmp_path / "s")
    assert (tmp_path / "s" / snapshot._FILE).exists()
    return tmp_path / "s"


def every_kind(folder: Path) -> None:
    """Record a sweep with what ``sweeps.record`` has not: resumption, branches, repetitions, changes, answers."""
    sweep = Sweep(folder, repeats=2, further=[["acc", "max"]])
    first = sweep.run(0.5, 0.25, lr=0.1, name="a\x1b[0mb")
    other = sweep.run(0.75, float("inf"), lr=0.2)
    sweep.run(0.7, kind={"branch": Branch("00000", "00000", 2)}, lr=0.3)
    sweep.run(0.3, kind={"repeats": "00000", "repetition": 1}, lr=0.1)
    sweep.callback.change(other.trial_id, 2, {"lr": 0.4, "name": "\x1b"}, first.trial_id, 2)
    sweep.report(other, 3, 0.2)
    sweep.callback.change(other.trial_id, 3, {"lr": 0.5}, first.trial_id, 2)
    for told in ({"ok": True, "said": "now 9", "num_samples": 9}, {"ok": False, "said": "no"}):
        sweep.callback._write("command", id=told["said"], do="set", trial=None, arguments={}, **told)
    sweep.callback._write("checkpoint", trial=other.trial_id, training_iteration=3, epoch=2, path="a/b.ckpt", value=0.2)
    sweep.fail(first)
    Sweep(folder).callback.record.close()


def told(state: SweepState) -> Any:
    """Return all that is known of a sweep, so that NaN equals NaN."""
    return json.dumps({**asdict(state), "events": [*state.events]}, default=vars)


@pytest.mark.parametrize("make", [sweeps.record, every_kind, lambda folder: shutil.copytree(RECORDED, folder)])
def test_a_reader_knows_all_that_a_replay_does_however_much_of_it_is_in_the_snapshot(tmp_path, make):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    cut.mkdir()
    make(whole)
    text = (whole / "record.jsonl").read_bytes()
    ends = [at for at, byte in enumerate(text, start=1) if byte == ord("\n")]
    places = [place for at in ends for place in (at - 1, at, at + 5)]  # where lines end, and within them
    for number, place in enumerate(places[:: max(1, len(places) // 60)]):
        (cut / "record.jsonl").write_bytes(text[:place])
        if number % 3 == 0:
            (cut / snapshot._FILE).unlink(missing_ok=True)
        found, wanted = read_record(cut, lazy=True), read_record(cut)
        assert told(found) == told(wanted), place
        assert list(found.live) == list(wanted.live)
        assert {name: type(value) for name, value in vars(found).items()} == {
            name: type(value) for name, value in vars(wanted).items()
        }
    kept = read_record(whole, lazy=True)
    assert told(read_record(whole, lazy=True)) == told(kept) == told(read_record(whole))
    trial = next(trial for trial in kept.trials.values() if trial.moves)
    assert {type(one) for one in (*trial.moves, *kept.events, *kept.notes)} == {tuple}


def test_a_reader_reads_only_what_came_since_the_last_one(folder, applied):
    text = (folder / "record.jsonl").read_bytes()
    *first, one, two = text.splitlines(keepends=True)
    (folder / "record.jsonl").write_bytes(b"".join(first))
    read_record(folder, lazy=True)
    assert applied.call_count == len(first)
    (folder / "record.jsonl").write_bytes(text)
    wanted = read_record(folder)
    applied.reset_mock()
    assert told(read_record(folder, lazy=True)) == told(wanted)
    assert [call.args[1]["kind"] for call in applied.mock_calls] == [json.loads(line)["kind"] for line in (one, two)]
    assert SweepResults.load(folder).best.value == wanted.best.value  # type: ignore[union-attr]


def test_what_is_new_is_kept_once_it_is_some_of_the_record(folder, monkeypatch, applied):
    monkeypatch.setattr(record, "_LONG", 1 << 10)
    kept = (folder / snapshot._FILE).read_bytes()
    writer = record.Record.open(folder)
    for text in ("short", "long" * 1000):
        writer.append("note", text=text)
        writer._write()
        read_record(folder, lazy=True)
        assert ((folder / snapshot._FILE).read_bytes() == kept) is (text == "short")
    writer.close()


def test_a_short_record_has_no_snapshot(tmp_path, monkeypatch):
    monkeypatch.undo()
    sweeps.record(tmp_path / "s")
    assert not (tmp_path / "s" / snapshot._FILE).exists()
    assert type(next(iter(read_record(tmp_path / "s", lazy=True).trials.values())).history) is list


def changed_head(folder: Path) -> None:
    path = folder / "record.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    line = json.loads(first)
    del line["crc"]
    line["sweep"]["name"] = "t"
    path.write_bytes(b"".join([sealed(json.dumps(line).encode()), *others]))


def lost_line(folder: Path) -> None:
    path = folder / "record.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"note"' not in line))


def damaged(folder: Path) -> None:
    path = folder / snapshot._FILE
    path.write_bytes(path.read_bytes().replace(b"RUNNING", b"STOPPED"))


def other_code(folder: Path) -> None:
    snapshot._CODE = (*snapshot._CODE[:2], "record.py")  # type: ignore[misc]


def leading_out(folder: Path) -> None:
    rewritten(folder, lambda head, rest: head["state"]["trials"].update(folder=["../../x"] * len(rest)))


def rewritten(folder: Path, change: Any) -> None:
    """Change a snapshot as somebody would who knows how it is made."""
    path = folder / snapshot._FILE
    first, *rest = path.read_bytes().splitlines()
    head = json.loads(first)
    del head["crc"]
    change(head, rest)
    head["rest"] = snapshot.zlib.crc32(b"\n".join(rest))
    path.write_bytes(sealed(json.dumps(head).encode()) + b"\n".join(rest))


@pytest.mark.parametrize(
    "harm",
    [
        changed_head, lost_line, damaged, other_code, leading_out,
        lambda folder: (folder / snapshot._FILE).write_bytes(b""),
        lambda folder: rewritten(folder, lambda head, rest: head.update(of=[-1, 2, 3, 4])),
        lambda folder: rewritten(folder, lambda head, rest: head["state"].pop("trials")),
        lambda folder: rewritten(folder, lambda head, rest: head["state"].update(more=1)),
        lambda folder: rewritten(folder, lambda head, rest: rest.pop()),
    ],
    ids=[
        "changed_head", "lost_line", "damaged", "other_code", "leading_out", "empty", "of", "trials", "more", "rest",
    ],
)  # fmt: skip
def test_a_snapshot_that_does_not_fit_is_thrown_away(folder, harm, applied, monkeypatch):
    monkeypatch.setattr(snapshot, "_CODE", snapshot._CODE)
    harm(folder)
    wanted = read_record(folder)
    for lines in ((folder / "record.jsonl").read_bytes().count(b"\n"), 0):
        applied.reset_mock()
        assert told(read_record(folder, lazy=True)) == told(wanted)
        assert applied.call_count == lines


@pytest.mark.parametrize(
    "line", [b'{"history":"","checkpoints":[{"path":"../x"}]}', b'{"history":"QQ=="}', b"{}", b"["]
)
def test_a_trial_that_somebody_wrote_into_a_snapshot_to_do_harm_is_an_error(folder, line):
    rewritten(folder, lambda head, rest: rest.__setitem__(0, line))
    trial = read_record(folder, lazy=True).trials["00000"]
    assert trial.state == "FINISHED"
    with pytest.raises(StorageError, match=r"\.snapshot\.jsonl is damaged .* Delete it"):
        _ = trial.checkpoints


def test_a_folder_that_cannot_be_written_is_read_all_the_same(folder, monkeypatch):
    (folder / snapshot._FILE).unlink()
    monkeypatch.setattr(snapshot, "write_atomically", mock.Mock(side_effect=PermissionError(13, "no")))
    assert told(read_record(folder, lazy=True)) == told(read_record(folder))
    assert not (folder / snapshot._FILE).exists()


def test_the_copy_of_a_sweep_in_a_store_has_no_snapshot(folder):
    mirror: Any = StoreMirror.__new__(StoreMirror)
    mirror._folder, mirror._lease = folder, type("", (), {"owner": type("", (), {"record": "record.jsonl"})})
    assert [path.name for path in mirror._files()] == ["sweep.yaml", "record.jsonl"]


def test_reports_stay_readable_when_the_sweep_is_deleted_and_what_is_copied_holds_them(folder):
    wanted = json.dumps([trial.history for trial in read_record(folder).trials.values()])
    loaded, copied = read_record(folder, lazy=True), copy.deepcopy(read_record(folder, lazy=True))
    pickled = pickle.loads(pickle.dumps(read_record(folder, lazy=True)))
    shutil.rmtree(folder)
    for state in (loaded, copied, pickled):
        assert json.dumps([list(trial.history) for trial in state.trials.values()]) == wanted
    assert type(copied.trials["00000"].history) is type(pickled.trials["00000"].history) is list


def test_who_reads_a_record_keeps_of_each_trial_the_last_report_and_what_is_asked_for_later(folder):
    (folder / snapshot._FILE).unlink()
    history: Any = read_record(folder, lazy=True).trials["00000"].history
    assert len(history._read) == 1
    assert history[-1]["training_iteration"] == len(history)
    assert [report["training_iteration"] for report in history] == [*range(1, len(history) + 1)]
    assert len(history._read) == len(history)


def test_a_report_that_is_overwritten_after_it_was_read_is_an_error(folder):
    history = read_record(folder, lazy=True).trials["00000"].history  # from its snapshot
    assert [report["training_iteration"] for report in history[1:3]] == [2, 3]
    with (folder / "record.jsonl").open("r+b") as stream:
        stream.truncate(100)
    with pytest.raises(StorageError, match="has changed since it was read"):
        list(history)


def test_a_trial_has_no_other_attributes_than_its_own(folder):
    trial = read_record(folder, lazy=True).trials["00000"]
    with pytest.raises(AttributeError, match="no attribute 'histories'"):
        _ = trial.histories  # type: ignore[attr-defined]
    assert trial == read_record(folder).trials["00000"]


def test_who_asks_a_driver_follows_its_record_from_the_snapshot_on(folder):
    follower = RecordFollower(folder, brief=True, skip=True)
    assert follower.look() == []
    assert told(follower.state) == told(read_record(folder, lazy=True))
    writer = record.Record.open(folder)
    writer.append("report", trial="00000", training_iteration=99, epoch=98, timestamp=1.0, metrics={"loss": 1.0},
                  decision="CONTINUE")  # fmt: skip
    writer.append("command", id="c", do="set", trial=None, arguments={}, ok=True, said="done")
    writer.close()
    assert [line["kind"] for line in follower.look()] == ["report", "command"]
    assert follower.state.answers == {"c": (True, "done")}
    wanted: Any = read_record(folder).trials["00000"]
    assert follower.state.trials["00000"].history == [wanted.history[wanted.best], wanted.history[-1]]
