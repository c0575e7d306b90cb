"""What a process uses of its machine: this one, which burns CPU time, fills memory and starts others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tunelight.machine.processes import descendants
from tunelight.machine.usage import Sampler, joined, used
from tunelight.messages import Usage

MB = 1_000_000
BURNS = "print('ready', flush=True)\nwhile True: pass"
FILLS = "held = b'x' * 80_000_000; print('ready', flush=True); input()"
HAS_A_CHILD = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); "
    "print(child.pid, flush=True); input(); child.kill(); child.wait()"
)


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.fixture
def started() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start Pythons that run some code and have printed a line; end them."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        children.append(subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_memory_that_is_filled_is_seen() -> None:
    sampler = Sampler()
    before = sampler.sample().memory
    held = b"x" * (100 * MB)
    assert before + 90 * MB < sampler.sample().memory < before + 150 * MB
    assert held


def test_cpu_time_is_a_mean_since_the_sample_before() -> None:
    now = [0.0]
    sampler = Sampler(clock=lambda: now[0])
    burn(0.3)
    now[0] = 1.0
    assert 0.3 <= sampler.sample().cpu < 0.5
    now[0] = 2.0
    assert sampler.sample().cpu < 0.2
    burn(0.3)
    sampler.rest()
    now[0] = 3.0
    assert sampler.sample().cpu < 0.2


def test_a_sample_at_the_same_moment_as_the_last_one_has_no_mean() -> None:
    assert Sampler(clock=lambda: 1.0).sample().cpu == 0.0


def test_child_processes_count_while_they_live(started: Callable[[str], Any]) -> None:
    sampler = Sampler()
    alone = sampler.sample()
    burning, filled = started(BURNS), started(FILLS)
    for child in (burning, filled):
        child.stdout.readline()
    sampler.sample()
    time.sleep(1.0)
    together = sampler.sample()
    assert together.cpu > 0.2  # less than 1 on a machine with other work
    assert together.memory > alone.memory + 80 * MB
    for child in (burning, filled):
        child.kill()
        child.wait()
    assert sampler.sample().memory < alone.memory + 40 * MB


def test_children_of_children_are_found_and_nothing_is_where_there_are_none(started: Callable[[str], Any]) -> None:
    assert descendants() == []
    child = started(HAS_A_CHILD)
    grandchild = int(child.stdout.readline())
    assert sorted(descendants()) == sorted([child.pid, grandchild])
    child.communicate("\n")
    assert descendants() == []


# --- GPUs ---------------------------------------------------------------------------------------------------


BUSY = {"0": 20, "1": 40, "GPU-b": 60}
"""GPUs by number or UUID, and in how many hundredths of the time they are busy."""


def bindings(calls: list[str]) -> Any:
    """Return NVML's bindings for a machine with those GPUs; note the calls that load it or ask a GPU."""

    def rates(handle: str) -> Any:
        calls.append(handle)
        return SimpleNamespace(gpu=BUSY[handle])

    return SimpleNamespace(
        nvmlInit=lambda: calls.append("init"),
        nvmlDeviceGetHandleByIndex=lambda index: str(index + 0),
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetUtilizationRates=rates,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=BUSY[handle] * MB),
    )


@pytest.mark.parametrize(
    ("gpus", "busy", "memory"), [(("0",), 0.2, 20 * MB), (("0", "1"), 0.3, 60 * MB), (("GPU-b",), 0.6, 60 * MB)]
)
def test_gpus_are_asked_by_number_or_uuid(gpus: tuple[str, ...], busy: float, memory: int) -> None:
    calls: list[str] = []
    sampler = Sampler(gpus, lambda: bindings(calls))
    assert calls == []  # NVML is not loaded before it is needed
    for _ in range(2):
        found = sampler.sample()
        assert found.gpu == pytest.approx(busy)
        assert found.gpu_memory == memory
    assert calls == ["init", *gpus, *gpus]


def test_a_gpu_that_does_not_tell_is_not_asked_again() -> None:
    calls: list[str] = []
    sampler = Sampler(("MIG-1",), lambda: bindings(calls))
    for _ in range(3):
        found = sampler.sample()
        assert (found.gpu, found.gpu_memory) == (None, None)
    assert calls == ["init", "MIG-1"]


def test_nvml_is_not_needed() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    for sampler in (Sampler(("0",), missing), Sampler(("0",)), Sampler((), lambda: bindings([]))):
        found = sampler.sample()
        assert (found.gpu, found.gpu_memory) == (None, None)
        assert found.memory > 0


# --- several samples ----------------------------------------------------------------------------------------


def test_samples_are_joined_to_peaks_and_a_mean() -> None:
    first = joined(None, used(Usage(1.5, 300, 0.9, 10)))
    both = joined(first, used(Usage(0.5, 400, 0.3, 5)))
    assert (both.samples, both.last, both.peak) == (2, Usage(0.5, 400, 0.3, 5), Usage(1.5, 400, 0.9, 10))
    assert both.gpu == pytest.approx(0.6)
    all_three = joined(both, used(Usage(0.1, 100)))  # its GPU no longer tells
    assert all_three.peak == Usage(1.5, 400, 0.9, 10)
    assert all_three.gpu == pytest.approx(0.6)
    assert joined(used(Usage(0.1, 100)), used(Usage(0.2, 50))).gpu is None
