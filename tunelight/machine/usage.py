"""What this process uses of its machine: CPUs, memory and GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import psutil

from tunelight.machine.processes import descendants
from tunelight.messages import Usage, Used


class Sampler:
    """Measures what this process and its live children use. Runs on: worker.

    A sample takes about twenty microseconds, and half a millisecond in a process with eight loader processes. A
    quantity that one of the GPUs does not tell, as the utilisation of a MIG instance, is None.

    Args:
        gpus: the GPUs of this process, as Ray names them: numbers in PCI order, or UUIDs.
        nvml: returns the module ``pynvml``; without it, and where it does not know the GPUs, they are not measured.
    """

    def __init__(
        self,
        gpus: tuple[str, ...] = (),
        nvml: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = None if nvml is None or not gpus else _Gpus(gpus, nvml)
        self._clock = clock
        self._own = psutil.Process()
        self._children: dict[int, psutil.Process] = {}
        self.rest()

    def rest(self) -> None:
        """Count CPU time from now on."""
        self._at = self._clock()
        self._spent, _ = self._measure()

    def sample(self) -> Usage:
        """Return what is used now, CPUs as a mean since the last sample."""
        before, began = self._spent, self._at
        self._at = self._clock()
        self._spent, memory = self._measure()
        spent = sum(max(0.0, now - before.get(pid, 0.0)) for pid, now in self._spent.items())
        cpu = spent / (self._at - began) if self._at > began else 0.0
        return Usage(cpu, memory, **self._of_gpus())

    def _measure(self) -> tuple[dict[int, float], int]:
        """Return the seconds of CPU time that each process has spent, by its id, and the bytes of all."""
        spent, memory = {self._own.pid: time.process_time()}, int(self._own.memory_info().rss)
        known, self._children = self._children, {}
        for pid in descendants():
            with suppress(psutil.Error):  # it has just ended
                child = known.get(pid) or psutil.Process(pid)
                times, resident = child.cpu_times(), child.memory_info()
                spent[pid] = times.user + times.system
                memory += int(resident.rss - getattr(resident, "shared", 0))
                self._children[pid] = child
        return spent, memory

    def _of_gpus(self) -> dict[str, Any]:
        if self._gpus is None:
            return {}
        try:
            return self._gpus.measure()
        except Exception:  # noqa: BLE001 - no bindings, no driver, an unknown GPU: none is worth a trial
            self._gpus = None
            return {}


class _Gpus:
    """The GPUs of this process, as NVML knows them. NVML is loaded at the first measurement."""

    def __init__(self, names: tuple[str, ...], nvml: Callable[[], Any]) -> None:
        self._names, self._load = names, nvml
        self._nvml: Any = None
        self._handles: list[Any] = []

    def measure(self) -> dict[str, Any]:
        """Return what the GPUs tell now. Raises: whatever NVML does where it cannot be loaded or finds no such GPU."""
        if self._nvml is None:
            nvml = self._load()
            nvml.nvmlInit()
            self._handles = [
                nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
                for name in self._names
            ]
            self._nvml = nvml
        busy = self._ask(lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
        memory = self._ask(lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu))
        return {
            "gpu": None if busy is None else sum(busy) / len(busy),
            "gpu_memory": None if memory is None else sum(int(of_gpu.used) for of_gpu in memory),
            "gpu_memory_total": None if memory is None else sum(int(of_gpu.total) for of_gpu in memory),
        }

    def _ask(self, question: Callable[[Any, Any], Any]) -> list[Any] | None:
        """Return each GPU's answer; None if one has none now. It is asked again, for it may have one later."""
        try:
            return [question(self._nvml, handle) for handle in self._handles]
        except Exception:  # noqa: BLE001 - of each version of the bindings; what fails must not silence the rest
            return None


def used(sample: Usage) -> Used:
    """Return what one sample says."""
    return Used(1, sample, sample, sample.gpu)


def joined(before: Used | None, later: Used) -> Used:
    """Return what earlier and later samples of a rank say together."""
    if before is None:
        return later
    peak: dict[str, Any] = {}
    for name, value in asdict(before.peak).items():
        known = [each for each in (value, getattr(later.peak, name)) if each is not None]
        peak[name] = max(known, default=None)
    gpu = mean([(before.gpu, before.samples), (later.gpu, later.samples)])
    return Used(samples=before.samples + later.samples, last=later.last, peak=Usage(**peak), gpu=gpu)


def mean(values: list[tuple[float | None, int]]) -> float | None:
    """Return the mean of (value, weight) without those that are None; None where no value is left."""
    known = [(value, weight) for value, weight in values if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
