"""storage: one driver a sweep."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import until
from tunelight.errors import StorageError
from tunelight.record import LOCK_FILE, RecordCallback, locked

HOLD = """
import sys
from tunelight.record import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate(timeout=10)


def test_second_driver_is_refused_with_the_firsts_host_and_pid(tmp_path):
    holder = hold(tmp_path)
    try:
        with pytest.raises(StorageError, match=rf"process {holder.pid} on {socket.gethostname()}"), locked(tmp_path):
            pass
    finally:
        end(holder)


def test_lock_of_a_killed_driver_counts_no_more(tmp_path):
    end(hold(tmp_path))
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"]
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_lock_is_let_go_at_the_end_also_of_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        pass


def test_one_process_holds_a_sweep_once(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(StorageError, match=f"process {os.getpid()} on"),
        locked(tmp_path),
    ):
        pass


def test_lock_of_another_host_counts_while_it_gives_signs_of_life(tmp_path):
    lock = tmp_path / LOCK_FILE
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 7, "since": "today"}))
    with pytest.raises(StorageError, match=r"process 7 on elsewhere.*sign of life"), locked(tmp_path):
        pass
    old = time.time() - 61
    os.utime(lock, (old, old))
    with locked(tmp_path):
        pass


def test_torn_lock_of_a_driver_that_died_is_taken(tmp_path):
    (tmp_path / LOCK_FILE).write_text('{"host": "els')
    with locked(tmp_path):
        pass


def test_folder_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="cannot be written"), locked(tmp_path / "none"):
        pass


def test_a_driver_that_slept_stops_writing_once_another_host_has_taken_its_sweep(tmp_path):
    def another_takes_it() -> None:
        lock = tmp_path / LOCK_FILE
        lock.write_text(json.dumps({"host": "elsewhere", "pid": 7, "since": "today"}))

    with locked(tmp_path) as lease:
        record = RecordCallback(tmp_path, lease=lease, metric="loss", mode="min")
        another_takes_it()
        record.note("written within half a minute of the last look")
        written = record.record.path.read_bytes()
        lease._looked -= 31  # the machine slept: no thread ran, and the wall clock went on
        with pytest.raises(StorageError, match=r"taken over by process 7 on elsewhere.*This driver has stopped"):
            record.note("of a sweep that is another driver's")
        with pytest.raises(StorageError, match="taken over"):
            record.on_step_begin(1, [])
        record.close()
    assert record.record.path.read_bytes() == written
    assert json.loads((tmp_path / LOCK_FILE).read_text())["host"] == "elsewhere"


def test_a_beat_does_not_touch_the_lock_of_a_successor(tmp_path, monkeypatch):
    monkeypatch.setattr("tunelight.record.lock.BEAT_S", 0.01)
    lock = tmp_path / LOCK_FILE
    with locked(tmp_path) as lease:
        lock.write_text(json.dumps({"host": "elsewhere", "pid": 7}))
        until(lambda: lease._successor is not None, 5)
        os.utime(lock, (0, 0))
        time.sleep(0.1)
        assert lock.stat().st_mtime == 0
