"""The watch of conftest.py: what it sees, and what it lets pass."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from tests import conftest


def test_a_thread_that_is_no_daemon_is_named():
    before, go_on = set(threading.enumerate()), threading.Event()
    threads = [threading.Thread(target=go_on.wait, name=f"d{d:d}", daemon=d) for d in (False, True)]
    try:
        for thread in threads:
            thread.start()
        assert conftest._new_threads(before) == ["the thread 'd0', which is no daemon"]
    finally:
        go_on.set()
        for thread in threads:
            thread.join()
    assert conftest._new_threads(before) == []


def test_a_child_process_is_named_and_ended():
    before = conftest._children()
    code = "import time; print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"  # a moment after it is made, a process has no command line yet
        (process,) = conftest._new_processes(before)
        assert process.pid == child.pid
        assert "time.sleep(60)" in conftest._end(process)
    assert conftest._new_processes(before) == []


def test_a_changed_variable_is_named_with_both_values(monkeypatch):
    monkeypatch.setenv("TUNELIGHT_CHANGED", "1")
    before = dict(os.environ)
    monkeypatch.setenv("TUNELIGHT_CHANGED", "2")
    monkeypatch.setenv("KMP_INIT_AT_FORK", "other")
    assert conftest._changed_environment(before) == [
        "the environment variable TUNELIGHT_CHANGED: '1' -> '2'",
    ]
