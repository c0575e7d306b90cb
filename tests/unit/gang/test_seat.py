"""The end of a worker's process, with real ones."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tunelight.gang import seat
from tunelight.gang.placement import Location
from tunelight.gang.seat import _kill

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    one = subprocess.Popen([sys.executable, "-c", DEAF, request.param], stdout=subprocess.PIPE)
    assert one.stdout is not None
    assert one.stdout.readline()
    yield one
    one.kill()
    one.wait()
    one.stdout.close()


@pytest.mark.parametrize("process", ["GangWorker"], indirect=True)
def test_a_worker_that_does_not_end_is_killed_and_gone_when_its_gpu_is_needed(
    process: subprocess.Popen[bytes],
) -> None:
    _kill(process.pid, 10.0)
    assert process.poll() is not None


@pytest.mark.parametrize("process", ["another program"], indirect=True)
def test_another_process_of_the_same_number_is_left_alone(process: subprocess.Popen[bytes]) -> None:
    _kill(process.pid, 10.0)
    assert process.poll() is None


def test_a_process_that_is_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no command line any more, and its GPU's memory may not be free yet."""
    ended = threading.Event()

    class Ending:
        def __init__(self, pid: int) -> None:
            threading.Timer(0.2, ended.set).start()

        def cmdline(self) -> list[str]:
            return []

        def is_running(self) -> bool:
            return not ended.is_set()

        def status(self) -> str:
            return "running"

    monkeypatch.setattr(seat.psutil, "Process", Ending)
    _kill(1, 10.0)
    assert ended.is_set()
    ended.clear()
    began = time.monotonic()
    _kill(1, 0.0)
    assert not ended.is_set()
    assert time.monotonic() - began < 0.2


@pytest.mark.parametrize(("gpus", "waits"), [(("0",), True), ((), False)])
def test_only_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...], waits: bool) -> None:
    given: list[float] = []
    context = type("Context", (), {"get_node_id": staticmethod(lambda: "a")})
    monkeypatch.setattr(seat.ray, "get_runtime_context", context)
    monkeypatch.setattr(seat, "_kill", lambda pid, free_s: given.append(free_s))
    seat._end_process(Location("a", "10.0.0.1", 1, "host", gpus), only_here=True)
    assert (given[0] > 0) is waits
