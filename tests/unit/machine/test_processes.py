"""Whether a process runs, on any system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunelight.machine.processes import is_running

PACKAGE = Path(__file__).parents[3] / "tunelight"


def test_a_process_runs_until_it_has_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.communicate(b"\n")
    assert not is_running(child.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**62])
def test_what_is_no_process_id_runs_not(pid):
    assert not is_running(pid)


def test_another_user_s_process_runs(monkeypatch):
    def kill(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert is_running(1)


def test_only_what_has_another_way_on_macos_reads_what_linux_alone_has():
    linux_only = ("/proc", "/dev/shm", "memfd_create", "sched_", "io_counters", "cpu_affinity", "ru_maxrss", "prctl")
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        for name in linux_only
        if name in line.partition("#")[0]
    }
    assert found == {
        ("data/cached.py", "/proc"),
        ("data/cached.py", "memfd_create"),
        ("cluster/doctor.py", "/dev/shm"),
        ("machine/forkserver/server.py", "/proc"),  # workers are started one by one on macOS
        ("machine/forkserver/server.py", "sched_"),
        ("machine/forkserver/setup_worker.py", "sched_"),
    }
