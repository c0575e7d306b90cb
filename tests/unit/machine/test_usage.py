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
    assert sampler.sample().cpu == 0.0  # at the same moment as before there is no mean
    burn(0.3)
    now[0] = 1.0
    assert 0.3 <= sampler.sample().cpu < 0.5
    now[0] = 2.0
    assert sampler.sample().cpu < 0.2
    burn(0.3)
    sampler.rest()
    now[0] = 3.0
    assert sampler.sample().cpu < 0.2


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


GPUS = {"0": 20, "1": 40, "GPU-b": 60, "MIG-c": 80}
"""GPUs by number or UUID: in how many hundredths of the time they are busy, and how many MB are used."""


class NVMLError(Exception):
    """As the bindings raise it, for instance NVML_ERROR_NOT_SUPPORTED."""


class Nvml:
    """NVML on a machine with those GPUs. ``calls``: what loads it or asks for utilisation; ``failing``: what fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: set[str] = set()

    def bindings(self) -> Any:
        """Return the module ``pynvml``."""
        return self

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.calls.append("init")
        if "init" in self.failing:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return str(index + 0)

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        if name not in GPUS:
            raise NVMLError("Not Found")
        return name

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        self.calls.append(handle)
        return SimpleNamespace(gpu=self._number("utilisation", handle))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(used=self._number("memory", handle) * MB, total=100 * MB)

    def _number(self, function: str, handle: str) -> int:
        if function in self.failing or (handle.startswith("MIG-") and function != "memory"):
            raise NVMLError("Not Supported")
        return GPUS[handle]


def of_gpus(sample: Usage) -> tuple[Any, ...]:
    return sample.gpu, sample.gpu_memory, sample.gpu_memory_total


@pytest.mark.parametrize(
    ("gpus", "busy", "memory", "total"), [(("0", "1"), 0.3, 60 * MB, 200 * MB), (("GPU-b",), 0.6, 60 * MB, 100 * MB)]
)
def test_gpus_are_asked_by_number_or_uuid(gpus: tuple[str, ...], busy: float, memory: int, total: int) -> None:
    nvml = Nvml()
    sampler = Sampler(gpus, nvml.bindings)
    assert nvml.calls == []  # NVML is not loaded before it is needed
    for _ in range(2):
        assert of_gpus(sampler.sample()) == (pytest.approx(busy), memory, total)
    assert nvml.calls == ["init", *gpus, *gpus]


def test_a_mig_instance_tells_its_memory_alone() -> None:
    assert of_gpus(Sampler(("MIG-c",), Nvml().bindings).sample()) == (None, 80 * MB, 100 * MB)


def test_a_quantity_that_fails_silences_no_other_and_is_asked_for_again() -> None:
    nvml = Nvml()
    sampler = Sampler(("0", "1"), nvml.bindings)
    before = of_gpus(sampler.sample())
    assert None not in before
    for failing, expected in (("utilisation", (None, 60 * MB, 200 * MB)), ("memory", (0.3, None, None))):
        nvml.failing = {failing}
        assert of_gpus(sampler.sample()) == pytest.approx(expected)
    nvml.failing = set()
    assert of_gpus(sampler.sample()) == before


@pytest.mark.parametrize(("gpu", "failing"), [("GPU-gone", set()), ("0", {"init"})])
def test_nvml_that_fails_at_its_start_is_not_started_again(gpu: str, failing: set[str]) -> None:
    nvml = Nvml()
    nvml.failing = failing
    sampler = Sampler((gpu,), nvml.bindings)
    for _ in range(3):
        assert of_gpus(sampler.sample()) == (None, None, None)
    assert nvml.calls == ["init"]


def test_nvml_is_not_needed() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    for sampler in (Sampler(("0",), missing), Sampler(("0",)), Sampler((), Nvml().bindings)):
        found = sampler.sample()
        assert of_gpus(found) == (None, None, None)
        assert found.memory > 0


# --- several samples ----------------------------------------------------------------------------------------


def test_samples_are_joined_to_peaks_and_means() -> None:
    first = joined(None, used(Usage(1.5, 300, 0.9, 10, 80)))
    both = joined(first, used(Usage(0.5, 400, 0.3, 5, 80)))
    assert (both.samples, both.last) == (2, Usage(0.5, 400, 0.3, 5, 80))
    assert both.peak == Usage(1.5, 400, 0.9, 10, 80)
    assert both.gpu == pytest.approx(0.6)
    all_three = joined(both, used(Usage(0.1, 100)))  # its GPU no longer tells
    assert all_three.peak == Usage(1.5, 400, 0.9, 10, 80)
    assert all_three.gpu == pytest.approx(0.6)
    assert joined(used(Usage(0.1, 100)), used(Usage(0.2, 50))).gpu is None
