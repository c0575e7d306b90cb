"""Whether a process runs, on any system."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tunelight.machine.processes import has_children, is_running

PACKAGE = Path(__file__).parents[3] / "tunelight"


def test_a_process_runs_until_it_has_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.communicate(b"\n")
    assert not is_running(child.pid)


def test_a_process_has_children_while_one_runs():
    code = (
        "import subprocess, sys; from tunelight.machine.processes import has_children; before = has_children();"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); during = has_children();"
        "child.communicate(b'\\n'); print(before, during, has_children())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    known = "False" if sys.platform == "linux" else "True"  # other systems do not say
    assert said.split() == [known, "True", known]


def test_a_child_of_a_thread_counts():
    started = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(
            lambda: started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        ).result()
        assert has_children()
        with started[0] as child:
            child.communicate(b"\n")


def test_what_is_no_process_id_runs_not_and_another_user_s_process_does(monkeypatch):
    assert [is_running(pid) for pid in (0, -1, 2**62)] == [False] * 3

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
        ("machine/processes.py", "/proc"),
        ("machine/forkserver/server.py", "/proc"),  # workers are started one by one on macOS
        ("machine/forkserver/server.py", "sched_"),
        ("machine/forkserver/setup_worker.py", "sched_"),
    }
