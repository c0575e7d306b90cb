"""What a seat sends its worker, and the end of a worker's process, with real ones."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.kit import tasks
from tests.kit.programs import held
from tests.kit.waiting import until
from tunelight.gang import seat
from tunelight.gang.placement import Location
from tunelight.gang.seat import Seat, _kill, _remains, await_ends
from tunelight.gang.spec import GangSpec

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(1, flush=True)
ctypes.CDLL(None).syscall(%d, 0)
"""
_EXIT = {"x86_64": 60, "aarch64": 93}
"""The number of the system call that ends one thread."""


@pytest.fixture
def start() -> Iterator[Any]:
    """Return a function that starts a program with an argument, and waits until it runs."""
    with contextlib.ExitStack() as started:

        def start(code: str, argument: str) -> Any:
            one: Any = started.enter_context(held(sys.executable, "-c", code, argument))
            assert one.stdout.readline()
            return one

        yield start


def test_a_worker_that_does_not_end_is_killed_and_another_process_of_the_same_number_left_alone(start: Any) -> None:
    process = start(DEAF, "GangWorker")
    assert _remains(process.pid)
    _kill(process.pid)
    until(lambda: not _remains(process.pid), 20)  # nobody has asked for its exit status yet
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    process = start(DEAF, "another program")
    _kill(process.pid)
    assert process.poll() is None
    assert not _remains(process.pid)


def test_a_process_remains_while_one_of_its_threads_does(start: Any) -> None:
    """It holds its memory, and a GPU's, though its first thread has ended."""
    process = start(FIRST_THREAD_ENDS % _EXIT[os.uname().machine], "GangWorker")
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, 20)
    assert _remains(process.pid)
    process.kill()
    until(lambda: not _remains(process.pid), 20)


@pytest.fixture
def vacated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a seat whose worker, a process, is not ended by Ray."""
    context = type("Context", (), {"get_node_id": staticmethod(lambda: "here")})
    monkeypatch.setattr(seat.ray, "get_runtime_context", context)
    monkeypatch.setattr(seat.ray, "kill", lambda worker: None)
    monkeypatch.setattr(seat, "_kill", lambda pid: None)

    def vacated(pid: int, *gpus: str) -> Seat:
        one = Seat(GangSpec(), worker="worker", location=Location("here", "10.0.0.1", pid, "host", gpus))
        one.vacate("it hangs")
        return one

    return vacated


def test_what_a_worker_holds_of_a_gpu_is_waited_for(start: Any, vacated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(DEAF, "GangWorker")
    one = vacated(process.pid, "0")
    looked = iter(range(10**6))

    def look(seconds: float) -> None:
        if next(looked) == 3:
            process.kill()
        time.sleep(seconds)

    sleeper = type("Time", (), {"sleep": staticmethod(look), "monotonic": staticmethod(time.monotonic)})
    monkeypatch.setattr(seat, "time", sleeper)
    await_ends([one, Seat(GangSpec())])
    assert not _remains(process.pid)
    assert next(looked) > 3


def test_but_not_for_long_nor_where_there_is_no_gpu(start: Any, vacated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(DEAF, "GangWorker")
    monkeypatch.setattr(seat, "_FREE_S", 0.05)
    one = vacated(process.pid, "0")
    await_ends([one])
    assert process.poll() is None
    assert one.ended is None
    assert vacated(start(DEAF, "GangWorker").pid).ended is None


def test_a_worker_is_sent_a_task_once_and_its_successor_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seat, "dismiss", lambda self: None)  # without Ray
    sent: list[Any] = []
    worker = SimpleNamespace(start=SimpleNamespace(remote=lambda start, task: sent.append((start.trial_id, task))))
    one = Seat(GangSpec(), worker=worker)
    (first, start), (second, _) = tasks.trial("x"), tasks.trial("x", metric="loss")
    for task in (first, first, second):
        one.start(task, start)
    one.vacate("lost")
    one.worker = worker
    one.start(second, start)
    assert sent == [("00000", first), ("00000", None), ("00000", second), ("00000", second)]
    assert one.starts == 1
