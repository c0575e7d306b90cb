"""The lease of a sweep: one driver at a time, and none that writes after its successor has begun."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.programs import held
from tests.kit.recording import overtaken, read_lines
from tests.kit.waiting import until
from tunelight.errors import StorageError
from tunelight.extras.attach import RecordFollower
from tunelight.machine.processes import born, process_table
from tunelight.record import RecordCallback, driver_of, leased, record_of
from tunelight.record.lease import STALE_S, Owner, Owners, claim

HOLD = """
import sys
from tunelight.record import leased
with leased(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def silent(folder: Path, generation: int, seconds: float) -> None:
    """Let an owner have given no sign of life for so long."""
    then = time.time() - seconds
    os.utime(folder / "owners" / f"{generation}.json", (then, then))


def elsewhere(folder: Path, generation: int = 1, **fields: Any) -> Owner:
    owner = Owner(generation, "elsewhere", 7, "today", table="elsewhere", **fields)
    assert Owners(folder).create(owner)
    return owner


def test_a_second_driver_is_refused_until_the_first_is_killed_also_while_nobody_has_asked_how_that_ended(
    tmp_path, monkeypatch
):
    holder: Any
    with held(sys.executable, "-c", HOLD, tmp_path, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match=rf"process {holder.pid} on {socket.gethostname()}"), leased(tmp_path):
            pass
        with monkeypatch.context() as patch:
            patch.setattr("tunelight.record.lease.born", lambda _: None)  # as where /proc is mounted with hidepid
            patch.setattr("tunelight.record.lease.BEAT_S", 0.01)
            assert getattr(driver_of(tmp_path), "alive", False)
            with pytest.raises(StorageError, match="gives signs of life"):
                claim(Owners(tmp_path))
        holder.kill()
        until(lambda: born(holder.pid) == 0, 10)
        assert holder.returncode is None, "it is a zombie"
        with leased(tmp_path) as lease:
            assert lease.generation == 2
            assert record_of(tmp_path).name == "record.jsonl", "a process that is gone writes no more"


def test_a_lease_ends_also_with_an_error_and_with_a_process_whose_id_another_one_has(tmp_path):
    Owners(tmp_path).create(Owner(1, socket.gethostname(), os.getpid(), table=process_table(), born=1))
    assert driver_of(tmp_path) is not None
    with pytest.raises(ZeroDivisionError), leased(tmp_path):
        raise ZeroDivisionError
    assert driver_of(tmp_path) is None
    with leased(tmp_path) as lease:
        assert lease.generation == 3
    with pytest.raises(StorageError, match="cannot be written"), leased(tmp_path / "none"):
        pass


def test_a_driver_elsewhere_is_waited_for_until_it_is_seen_to_live_or_has_been_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("tunelight.record.lease._POLL_S", 0.01)
    elsewhere(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Owners, "now", lambda self: 1001.0)
        patch.setattr(Owners, "touched", mock.Mock(side_effect=[1000.0] * 3 + [1001.0] * 99))
        with pytest.raises(StorageError, match=r"process 7 on elsewhere, since today. It gives signs of life"):
            claim(Owners(tmp_path))
    silent(tmp_path, 1, STALE_S - 0.3)
    began = time.monotonic()
    lease = claim(Owners(tmp_path))
    assert lease.generation == 2
    assert time.monotonic() - began >= 0.2


def test_ages_are_by_the_clock_that_sets_the_times_of_files_and_fields_of_a_later_version_are_passed_over(
    tmp_path, monkeypatch
):
    elsewhere(tmp_path)
    path = tmp_path / "owners" / "1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mood": "good"}))
    for wrong in (-600.0, 600.0):  # this machine's clock
        monkeypatch.setattr("tunelight.record.lease._offsets", {})
        real = time.time()
        monkeypatch.setattr("tunelight.record.lease.time.time", lambda now=real + wrong: now)
        found = driver_of(tmp_path)
        monkeypatch.undo()
        assert str(found) == "process 7 on elsewhere"
        assert getattr(found, "alive", False)
    silent(tmp_path, 1, STALE_S + 1)
    assert not getattr(driver_of(tmp_path), "alive", True)


def test_a_driver_that_slept_writes_nothing_that_readers_take_once_it_has_a_successor(tmp_path, machine):
    with overtaken(tmp_path) as lease:
        record = RecordCallback(tmp_path, lease=lease, metric="loss", mode="min")
        record.note("before it slept")
        follower = RecordFollower(tmp_path)
        follower.look()
        machine("second")
        silent(tmp_path, 1, STALE_S + 1)
        successor = claim(Owners(tmp_path))
        second = RecordCallback(tmp_path, lease=successor, metric="loss", mode="min")
        second.note("of the successor")
        machine("first")
        record.note("written before it has looked")
        lease._looked -= STALE_S  # the machine slept: no thread ran
        with pytest.raises(StorageError, match=r"taken over by process .*This driver has stopped"):
            record.note("of a sweep that is another driver's")
        with pytest.raises(StorageError, match="taken over"):
            record.on_step_begin(1, [])
        record.close()
        machine("third")
        assert [line["text"] for line in read_lines(tmp_path) if line["kind"] == "note"] == [
            "before it slept",
            "of the successor",
        ]
        follower.look()
        assert [text for _, text in follower.state.notes] == ["before it slept", "of the successor"]
        machine("first")
    assert not json.loads((tmp_path / "owners" / "2.json").read_text())["over"], "it gave up what was its own"
    second.close()


def test_a_beat_shows_life_until_there_is_a_successor(tmp_path, monkeypatch):
    monkeypatch.setattr("tunelight.record.lease.BEAT_S", 0.01)
    with overtaken(tmp_path) as lease:
        path = tmp_path / "owners" / "1.json"
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime > 0, 5)
        elsewhere(tmp_path, 2)
        until(lambda: lease._successor is not None, 5)
        os.utime(path, (0, 0))
        time.sleep(0.1)
        assert path.stat().st_mtime == 0


def test_an_owner_s_file_that_is_torn_or_names_a_record_that_is_not_there_or_elsewhere_hides_none(tmp_path):
    (tmp_path / "record.jsonl").write_bytes(b"old\n")
    elsewhere(tmp_path, record="../../etc/record.jsonl")
    assert record_of(tmp_path) == tmp_path / "record.jsonl"
    elsewhere(tmp_path, 2, record="record.2.jsonl")  # it died before it had one
    assert record_of(tmp_path).name == "record.jsonl"
    (tmp_path / "record.2.jsonl").write_bytes(b"old\nnew\nto")
    (tmp_path / "owners" / "3.json").touch()
    silent(tmp_path, 3, STALE_S + 1)
    assert record_of(tmp_path).name == "record.2.jsonl"
    with leased(tmp_path):
        assert record_of(tmp_path).name == "record.4.jsonl"
        assert record_of(tmp_path).read_bytes() == b"old\nnew\n"


def test_a_sweep_that_was_deleted_and_begun_anew_is_not_the_old_drivers(tmp_path, machine):
    with overtaken(tmp_path):
        machine("second")
        (tmp_path / "owners" / "1.json").unlink()
        lease = claim(Owners(tmp_path))
        machine("first")
    assert json.loads((tmp_path / "owners" / "1.json").read_text())["key"] == lease.owner.key


def test_a_process_that_could_not_give_its_sweep_up_can_take_it_again(tmp_path, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    (tmp_path / "record.jsonl").write_bytes(b"old\n")
    for broken in ("touch", "copy_record"):
        elsewhere(tmp_path, Owners(tmp_path).newest() + 1)
        silent(tmp_path, Owners(tmp_path).newest(), STALE_S + 1)
        with monkeypatch.context() as patch:
            patch.setattr(Owners, broken, full)
            if broken == "touch":
                with leased(tmp_path):
                    pass
            else:
                with pytest.raises(StorageError, match=r"No space left on device\. Make room"), leased(tmp_path):
                    pytest.fail("it began")
        with leased(tmp_path):
            assert record_of(tmp_path).read_bytes() == b"old\n"
    assert record_of(tmp_path).name != "record.jsonl", "the one elsewhere may still write that"


def test_a_copy_of_a_running_sweep_is_nobodys(tmp_path):
    (tmp_path / "s").mkdir()
    with leased(tmp_path / "s"):
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
        silent(tmp_path / "copy", 1, STALE_S + 1)
        with leased(tmp_path / "copy"):
            pass
