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

from tunelight.errors import StorageError
from tunelight.record import LOCK_FILE, locked

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
